package sops_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/keelson-io/keelson/registry/sops"
)

// TestKeys finds keys where sops finds them, and reads them as it does.
func TestKeys(t *testing.T) {
	t.Parallel()
	config := t.TempDir()
	if err := os.MkdirAll(filepath.Join(config, "sops", "age"), 0o700); err != nil {
		t.Fatal(err)
	}
	pq := filepath.Join(config, "sops", "age", "keys.txt")
	if err := os.WriteFile(pq, read(t, "testdata/pq-keys.txt"), 0o600); err != nil {
		t.Fatal(err)
	}
	broken := t.TempDir()
	if err := os.MkdirAll(filepath.Join(broken, "sops", "age"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(broken, "sops", "age", "keys.txt"), []byte("x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	two := strings.Join(strings.Fields(string(read(t, "testdata/keys.txt"))+" "+string(read(t, "testdata/other-keys.txt"))), " ")
	var secrets []string
	for word := range strings.FieldsSeq(two) {
		if strings.HasPrefix(word, "AGE-SECRET-KEY-") {
			secrets = append(secrets, word)
		}
	}
	cases := map[string]struct {
		why    string
		keys   sops.Keys
		env    map[string]string
		want   int
		err    string
		wheres []string
	}{
		"None": {why: "A fleet without secrets needs no key.", wheres: []string{"give --age-key-file"}},
		"File": {
			why:  "A file that is named is the only one.",
			keys: sops.Keys{File: "testdata/keys.txt", ConfigDir: config}, env: map[string]string{sops.EnvKeyFile: "testdata/other-keys.txt"},
			want: 1, wheres: []string{"looked in testdata/keys.txt"},
		},
		"Everywhere": {
			why:  "Else all places count, as for sops.",
			keys: sops.Keys{ConfigDir: config}, env: map[string]string{sops.EnvKeyFile: "testdata/keys.txt", sops.EnvKey: secrets[0] + " " + secrets[1]},
			want: 4, wheres: []string{"looked in SOPS_AGE_KEY, testdata/keys.txt, " + pq, "give --age-key-file"},
		},
		"NoDefault": {why: "The default file need not be there.", keys: sops.Keys{ConfigDir: t.TempDir()}},
		"Missing":   {why: "One that is named must be.", keys: sops.Keys{File: filepath.Join(config, "nothing")}, err: "no such file"},
		"MissingInEnvironment": {
			env: map[string]string{sops.EnvKeyFile: filepath.Join(config, "nothing")}, err: "no such file",
		},
		"BrokenDefault": {why: "What can't be read is not what is not there.", keys: sops.Keys{ConfigDir: broken}, err: "line 1 is no age identity"},
		"Folder":        {keys: sops.Keys{File: config}, err: "is a directory"},
		"Command":       {why: "Keelson runs no programs, and says so.", env: map[string]string{"SOPS_AGE_KEY_CMD": "cat"}, wheres: []string{"SOPS_AGE_KEY_CMD is not used"}},
		"Broken": {
			why: "A key that was cut must not be told, nor what it lacks.",
			env: map[string]string{sops.EnvKey: secrets[0][:40]}, err: "SOPS_AGE_KEY: line 1 is no age identity",
		},
		"SSH": {env: map[string]string{sops.EnvKey: "ssh-ed25519"}, err: "line 1 is no age identity"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tc.keys.Env = func(name string) string { return tc.env[name] }
			ids, err := tc.keys.Identities()
			switch {
			case tc.err == "" && err != nil:
				t.Errorf("%v\n%s", err, tc.why)
			case tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)):
				t.Errorf("error %v, want %q\n%s", err, tc.err, tc.why)
			case err != nil && strings.Contains(err.Error(), secrets[0][20:30]):
				t.Errorf("the error holds a key: %v", err)
			case len(ids) != tc.want:
				t.Errorf("%d keys, want %d\n%s", len(ids), tc.want, tc.why)
			}
			if name == "None" && tc.keys.Where() != "give --age-key-file" {
				t.Errorf("Where is %q", tc.keys.Where())
			}
			for _, where := range tc.wheres {
				if !strings.Contains(tc.keys.Where(), where) {
					t.Errorf("%q does not say %q", tc.keys.Where(), where)
				}
			}
		})
	}
}
