package sops

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"filippo.io/age"
)

// Environment variables of SOPS for age keys.
const (
	EnvKey     = "SOPS_AGE_KEY"
	EnvKeyFile = "SOPS_AGE_KEY_FILE"
	envKeyCmd  = "SOPS_AGE_KEY_CMD"
)

// maxKeyFile bounds the size of a file of keys, in bytes.
const maxKeyFile = 1 << 20

// Keys names the sources of age identities (private keys). They are read for each decryption, so
// that added and removed keys take effect without a restart.
type Keys struct {
	// File is the only source if it is set. Otherwise all sources of SOPS are used: SOPS_AGE_KEY,
	// SOPS_AGE_KEY_FILE, and sops/age/keys.txt in ConfigDir.
	File string
	// Env looks up an environment variable; nil for none.
	Env func(name string) string
	// ConfigDir is the user's folder for settings; empty for none.
	ConfigDir string
}

// Identities reads the keys. To have no keys is no error. A missing File or SOPS_AGE_KEY_FILE is an
// error.
func (k Keys) Identities() ([]age.Identity, error) {
	if k.File != "" {
		return readKeys(k.File)
	}
	env := k.env()
	var out []age.Identity
	if text := env(EnvKey); text != "" {
		ids, err := parseKeys(EnvKey, strings.Join(strings.Fields(text), "\n"))
		if err != nil {
			return nil, err
		}
		out = append(out, ids...)
	}
	if file := env(EnvKeyFile); file != "" {
		ids, err := readKeys(file)
		if err != nil {
			return nil, err
		}
		out = append(out, ids...)
	}
	if k.ConfigDir != "" {
		ids, err := readKeys(filepath.Join(k.ConfigDir, "sops", "age", "keys.txt"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		out = append(out, ids...)
	}
	return out, nil
}

// Where returns a text with the sources of keys, and how to set another source.
func (k Keys) Where() string {
	var where []string
	env := k.env()
	switch {
	case k.File != "":
		return "looked in " + k.File
	case env(EnvKey) != "":
		where = append(where, EnvKey)
	}
	if file := env(EnvKeyFile); file != "" {
		where = append(where, file)
	}
	if k.ConfigDir != "" {
		where = append(where, filepath.Join(k.ConfigDir, "sops", "age", "keys.txt"))
	}
	hint := "give --age-key-file"
	if len(where) > 0 {
		hint = "looked in " + strings.Join(where, ", ") + "; " + hint
	}
	if env(envKeyCmd) != "" {
		hint += "; " + envKeyCmd + " is not used, since Keelson runs no programs"
	}
	return hint
}

func (k Keys) env() func(string) string {
	if k.Env != nil {
		return k.Env
	}
	return func(string) string { return "" }
}

func readKeys(file string) (ids []age.Identity, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("read age keys: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	data, err := io.ReadAll(io.LimitReader(f, maxKeyFile+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read age keys: %w", err)
	case len(data) > maxKeyFile:
		return nil, fmt.Errorf("read age keys: %s is larger than %d MiB", file, maxKeyFile>>20)
	}
	return parseKeys(file, string(data))
}

// parseKeys parses one identity a line. Errors contain neither the line nor the cause, because the
// cause may quote the line.
func parseKeys(name, text string) ([]age.Identity, error) {
	var out []age.Identity
	n := 0
	for line := range strings.SplitSeq(text, "\n") {
		n++
		line = strings.TrimSpace(line)
		var (
			id  age.Identity
			err error
		)
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
			continue
		case strings.HasPrefix(line, "AGE-PLUGIN-"):
			return nil, fmt.Errorf("read age keys: %s: line %d is for a plugin; Keelson runs no programs", name, n)
		case strings.HasPrefix(line, "AGE-SECRET-KEY-PQ-1"):
			id, err = age.ParseHybridIdentity(line)
		case strings.HasPrefix(line, "AGE-SECRET-KEY-1"):
			id, err = age.ParseX25519Identity(line)
		default:
			err = errors.New("unknown")
		}
		if err != nil {
			return nil, fmt.Errorf("read age keys: %s: line %d is no age identity (AGE-SECRET-KEY-1…)", name, n)
		}
		out = append(out, id)
	}
	return out, nil
}
