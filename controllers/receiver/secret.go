package receiver

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

const (
	// secretLength is the minimum length of a secret, in bytes: a shorter secret can be guessed
	// from one webhook.
	secretLength = 16
	// secretsLimit bounds the size of the file, in bytes.
	secretsLimit = 64 << 10
	// secretsAge is how long the secrets are used before the file is read again: mounted Secrets
	// change.
	secretsAge = 10 * time.Second
)

// Secret is shared with a git host.
type Secret string

// String hides the secret from logs.
func (Secret) String() string { return "***" }

// File holds secrets, one per line. It is read again when it may have changed.
type File struct {
	path string
	now  func() time.Time
	// hide is called with every secret that was read.
	hide func(owner string, secrets ...string)

	mu      sync.Mutex
	secrets []Secret
	read    time.Time
}

// OpenFile reads the secrets in a file. The error describes the mistake, and quotes nothing of the
// file.
func OpenFile(path string, now func() time.Time, hide func(owner string, secrets ...string)) (*File, error) {
	f := &File{path: path, now: now, hide: hide}
	_, err := f.Secrets()
	return f, err
}

// Secrets returns the secrets in the file. If the file can't be read any more, it returns the
// secrets that were read last.
func (f *File) Secrets() ([]Secret, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := f.now(); f.secrets == nil || now.Sub(f.read) > secretsAge {
		secrets, err := f.load()
		if err != nil && f.secrets == nil {
			return nil, err
		}
		if f.read = now; err == nil {
			f.secrets = secrets
		}
	}
	return f.secrets, nil
}

func (f *File) load() (secrets []Secret, err error) {
	file, err := os.Open(f.path)
	if err != nil {
		return nil, fmt.Errorf("read the secrets of webhooks: %w", err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	data, err := io.ReadAll(io.LimitReader(file, secretsLimit+1))
	if err != nil {
		return nil, fmt.Errorf("read the secrets of webhooks: %w", err)
	}
	if len(data) > secretsLimit {
		return nil, fmt.Errorf("the file of secrets %s is larger than %d KiB", f.path, secretsLimit>>10)
	}
	n := 0
	for line := range strings.Lines(string(data)) {
		n++
		line = strings.TrimSpace(line)
		switch {
		case line == "":
			continue
		case len(line) < secretLength:
			return nil, fmt.Errorf("%s:%d: the secret is shorter than %d bytes: make one with `openssl rand -hex 32`", f.path, n, secretLength)
		}
		f.hide("webhook", line)
		secrets = append(secrets, Secret(line))
	}
	if len(secrets) == 0 {
		return nil, fmt.Errorf("the file of secrets %s holds none: webhooks without a secret are not taken", f.path)
	}
	return secrets, nil
}
