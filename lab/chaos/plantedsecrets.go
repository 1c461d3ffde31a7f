package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/keelson-io/keelson/lab/harness/must"
)

// minPlanted is the minimum number of secret values that a complete run must plant.
const minPlanted = 50

// plantedSecrets are made-up secrets. After the run, no output of Keelson may contain a
// planted secret.
type plantedSecrets struct {
	mu     sync.Mutex
	rand   *rand.Rand
	values map[string]string // from value to the place where it was planted
}

func newPlantedSecrets(seed uint64) *plantedSecrets {
	return &plantedSecrets{rand: rand.New(rand.NewPCG(seed, 50)), values: map[string]string{}} //nolint:gosec // no secret
}

// plant returns a new secret value for a place; where is the name of the place in
// reports. The value contains characters that YAML, JSON and URLs escape.
func (c *plantedSecrets) plant(where string) string {
	return c.add(where, func() string { return fmt.Sprintf("kanari-%012x<&\"%06x/+=", c.rand.Uint64()>>16, c.rand.Uint64()>>40) })
}

// plain returns a secret value of letters and digits only, such as a token.
func (c *plantedSecrets) plain(where string) string {
	return c.add(where, func() string { return fmt.Sprintf("kanari%016x%016x", c.rand.Uint64(), c.rand.Uint64()) })
}

// add registers a secret.
func (c *plantedSecrets) add(where string, secret func() string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	value := secret()
	c.values[value] = where
	return value
}

// disguises returns the encodings in which a value can appear in the output.
func disguises(value string) [][]byte {
	var escaped bytes.Buffer
	e := json.NewEncoder(&escaped)
	e.SetEscapeHTML(false)
	must.Do(e.Encode(value))
	html := must.Get(json.Marshal(value))
	twice := must.Get(json.Marshal(string(html)))
	bare := func(b []byte) []byte { return bytes.Trim(bytes.TrimSpace(b), `"`) }
	forms := [][]byte{
		[]byte(value), bare(escaped.Bytes()), bytes.TrimSuffix(bytes.TrimPrefix(html, []byte(`"`)), []byte(`"`)),
		bytes.Trim(twice, `"\`), []byte(url.QueryEscape(value)), []byte(url.PathEscape(value)),
		[]byte(fmt.Sprintf("%x", value)),
	}
	// In base64 the preceding bytes shift the encoding in three ways. The letters at
	// both ends also depend on neighbouring bytes, so they are left out.
	for shift := range 3 {
		s := base64.RawStdEncoding.EncodeToString(append(make([]byte, shift), value...))
		u := base64.RawURLEncoding.EncodeToString(append(make([]byte, shift), value...))
		from, to := (shift*8+5)/6, len(s)-2
		forms = append(forms, []byte(s[from:to]), []byte(u[from:to]))
	}
	return slices.CompactFunc(forms, bytes.Equal)
}

// search searches every file of a folder for every value. It returns the number of
// files, their total size in bytes, and a line per find.
func (c *plantedSecrets) search(folder string) (files, size int, found []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	forms := map[string][][]byte{}
	for value := range c.values {
		forms[value] = disguises(value)
	}
	must.Do(filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data := must.Get(os.ReadFile(path))
		files++
		size += len(data)
		for value, all := range forms {
			for _, form := range all {
				if bytes.Contains(data, form) {
					found = append(found, fmt.Sprintf("the secret planted in %s came out in %s: %s", c.values[value], path, lineWith(data, form)))
					break
				}
			}
		}
		return nil
	}))
	slices.Sort(found)
	return files, size, found
}

// lineWith returns a part of the line that contains a text: up to 150 bytes before
// and 150 bytes from the start of the text.
func lineWith(data, form []byte) string {
	const few = 150
	at := bytes.Index(data, form)
	start := max(bytes.LastIndexByte(data[:at], '\n')+1, at-few)
	line, _, _ := bytes.Cut(data[start:min(len(data), at+few)], []byte("\n"))
	return string(line)
}
