package sops_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"
)

// TestOracle has the real sops (KEELSON_SOPS, as make bin/sops builds it)
// encrypt random files by random rules, and compares what both decrypt them
// to. Then it changes a byte: what sops refuses, Keelson refuses.
func TestOracle(t *testing.T) {
	t.Parallel()
	program := os.Getenv("KEELSON_SOPS")
	if program == "" {
		t.Skip("set KEELSON_SOPS to the sops of make bin/sops")
	}
	ids := identities(t, "keys.txt")
	keys, err := filepath.Abs("testdata/keys.txt")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	sops := func(args ...string) ([]byte, error) {
		c := exec.CommandContext(t.Context(), program, args...)
		c.Dir = dir
		c.Env = []string{"SOPS_AGE_KEY_FILE=" + keys, "HOME=" + dir}
		return c.Output()
	}
	recipient := recipientOf(t, "keys.txt")
	rapid.Check(t, func(r *rapid.T) {
		values := rapid.MapOfN(rapid.SampledFrom(keyNames()), value(3), 1, 6).Draw(r, "values")
		text, err := yaml.Marshal(values)
		if err != nil {
			r.Fatal(err)
		}
		file := filepath.Join(dir, "file.yaml")
		if err := os.WriteFile(file, text, 0o600); err != nil {
			r.Fatal(err)
		}
		// The options of the command line that still has them all.
		args := append([]string{"--encrypt", "--in-place", "--age", recipient}, rapid.SampledFrom([][]string{
			{},
			{"--encrypted-regex", "^(a|password|list)"},
			{"--unencrypted-regex", "^(a|password|list)"},
			{"--encrypted-suffix", "d"},
			{"--unencrypted-suffix", "d"},
		}).Draw(r, "rule")...)
		if rapid.Bool().Draw(r, "mac only encrypted") {
			args = append(args, "--mac-only-encrypted")
		}
		if out, err := sops(append(args, file)...); err != nil {
			r.Fatalf("sops %v: %v\n%s\n%s", args, err, out, text)
		}
		sealed, err := os.ReadFile(file)
		if err != nil {
			r.Fatal(err)
		}
		// Not as YAML: its parser writes texts that begin with a line end so that
		// neither it nor another one can read them, some not even encrypted.
		plain, err := sops("decrypt", "--output-type", "json", file)
		if err != nil {
			return
		}
		var want map[string]any
		if err := json.Unmarshal(plain, &want); err != nil {
			r.Fatal(err)
		}
		if diff := cmp.Diff(want, decrypted(r, sealed, ids)); diff != "" {
			r.Fatalf("decrypted (-sops +keelson):\n%s\n%s", diff, sealed)
		}

		// The version of sops that stands last is bound to nothing.
		at := rapid.IntRange(0, bytes.LastIndex(sealed, []byte("\n    version: "))).Draw(r, "at")
		changed := bytes.Clone(sealed)
		changed[at] = rapid.SampledFrom([]byte("aZ09+/=: #\n\"-{[,")).Draw(r, "byte")
		if err := os.WriteFile(file, changed, 0o600); err != nil {
			r.Fatal(err)
		}
		if _, err := sops("decrypt", file); err == nil {
			return
		}
		if leaves, err := open(changed, ids); err == nil {
			r.Fatalf("sops refuses this file, and Keelson reads %v:\n%s", leaves, changed)
		}
	})
}

func keyNames() []string {
	return []string{"a", "b", "password", "password_unencrypted", "list", "a:b", "with space", "yes", "1", "null", "ünï", "end"}
}

// value is one of YAML, at most so deep.
func value(depth int) *rapid.Generator[any] {
	scalars := rapid.OneOf(
		rapid.Just[any](nil),
		rapid.Map(rapid.Bool(), func(v bool) any { return v }),
		rapid.Map(rapid.IntRange(-1<<53, 1<<53), func(v int) any { return v }),
		rapid.Map(rapid.Float64Range(-1e15, 1e15), func(v float64) any { return v }),
		rapid.Map(rapid.StringOf(rapid.SampledFrom([]rune("aB9 \n\t'\"#:-{}[]&*!|>%@`,ü☃=~"))), func(v string) any { return v }),
		rapid.Map(rapid.SampledFrom([]string{"yes", "on", "1e3", "0x1F", "2026-11-05", "~", "ENC[x]", "<<", "-----BEGIN KEY-----\nabc\n"}), func(v string) any { return v }),
	)
	if depth == 0 {
		return scalars
	}
	return rapid.OneOf(
		scalars,
		rapid.Map(rapid.SliceOfN(rapid.Deferred(func() *rapid.Generator[any] { return value(depth - 1) }), 0, 4), func(v []any) any { return v }),
		rapid.Map(rapid.MapOfN(rapid.SampledFrom(keyNames()), rapid.Deferred(func() *rapid.Generator[any] { return value(depth - 1) }), 0, 4),
			func(v map[string]any) any { return v }),
	)
}
