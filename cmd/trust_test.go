package cmd_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Keelson reads only commits and tags that a trusted key signed. A branch may be rewound only if a
// person accepts it. Files of the current folder can't choose the trusted keys.
func TestTrustedKeys(t *testing.T) {
	keygen, err := exec.LookPath("ssh-keygen")
	if err != nil {
		t.Skip("needs ssh-keygen, for git to sign with")
	}
	f := newFleet(t, "")
	dir := t.TempDir()
	key, keys := filepath.Join(dir, "id"), filepath.Join(dir, "allowed_signers")
	if out, err := exec.CommandContext(t.Context(), keygen, "-q", "-t", "ed25519", "-N", "", "-f", key).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	public, err := os.ReadFile(key + ".pub")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(keys, append([]byte("alice@example.com "), public...), 0o600); err != nil {
		t.Fatal(err)
	}
	sign := func(args ...string) {
		t.Helper()
		f.git(append([]string{"-c", "gpg.format=ssh", "-c", "user.signingkey=" + key}, args...)...)
	}
	f.keelson("validate", "--trusted-keys", keys).want(t, 2).says(t, "is not to be trusted: it is not signed", "(git commit -S)")

	f.edit("fleet.yaml", "name: test", "name: test\nverify: signed")
	f.git("add", "-A")
	sign("commit", "-q", "-S", "-m", "signed")
	f.keelson("validate").want(t, 2).says(t, "give --trusted-keys FILE")
	f.keelson("validate", "--worktree").want(t, 0) // a work tree is not signed, and not applied
	f.keelson("validate", "--trusted-keys", keys).want(t, 1).says(t, "of the lightweight tag web/v1.0.0 is not to be trusted")
	for _, tag := range []string{"web/v1.0.0", "gadgets/v1.0.0"} {
		sign("tag", "-f", "-s", "-m", "a version", tag, tag+"^{}")
	}
	f.keelson("validate", "--trusted-keys", keys, "-v").want(t, 0).says(t, "the commit is signed", "by=alice@example.com", "key=SHA256:")
	t.Setenv("KEELSON_TRUSTED_KEYS", keys)
	f.keelson("validate").want(t, 0)

	sign("commit", "-q", "-S", "--amend", "-m", "another")
	back := f.keelson("validate").want(t, 2).says(t, "branch HEAD was rewound", "alice@example.com (SHA256:")
	_, commit, _ := strings.Cut(strings.TrimSpace(back.err), "--accept-rewind ")
	f.keelson("validate", "--accept-rewind", "main").want(t, 2).says(t, "a full commit hash")
	f.keelson("validate", "--accept-rewind", commit).want(t, 0)
	f.keelson("validate").want(t, 0)

	t.Setenv("KEELSON_TRUSTED_KEYS", "")
	f.keelson("validate", "--trusted-keys", "").want(t, 2).says(t, "--trusted-keys names no file")
	t.Chdir(f.dir)
	for _, setting := range []string{"trusted-keys: keys", "git-credentials: logins.yaml"} {
		name, _, _ := strings.Cut(setting, ":")
		if err := os.WriteFile("keelson.yaml", []byte(setting+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		f.keelson("validate").want(t, 2).says(t, name+" is not taken from a file that was not asked for")
	}
	t.Setenv("KEELSON_GIT_PASSWORD", "hunter2")
	if err := os.WriteFile("keelson.yaml", []byte("repo: https://elsewhere.invalid/fleet.git\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	keelson(t, "validate").want(t, 2).says(t, "it would choose where KEELSON_GIT_PASSWORD is sent")
}
