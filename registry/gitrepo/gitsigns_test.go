package gitrepo_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/keelson-io/keelson/registry/gitrepo"
	"github.com/keelson-io/keelson/registry/gitrepo/gittest"
)

// TestGitSigns checks the signatures that git itself makes, with the programs
// that it runs for them, and lets it check ours.
func TestGitSigns(t *testing.T) {
	t.Parallel()
	for _, tool := range []string{"git", "ssh-keygen"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s", tool)
		}
	}
	for _, format := range []string{"ssh", "openpgp"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			s := newGitSigner(t, format)
			for name, content := range fleetFiles() {
				s.write(name, content)
			}
			s.git("init", "-q", "-b", "main")
			s.git("add", ".")
			s.git("commit", "-q", "-S", "-m", "subject\n\nbody")
			s.git("tag", "-s", "-m", "a version", "coredns/v1.0.0")
			r, err := gitrepo.Open(t.Context(), gitrepo.Options{URL: s.dir, CacheDir: t.TempDir(), TrustedKeys: []string{s.keys}})
			fatal(t, err)
			at, err := r.Admit(t.Context(), "")
			if err != nil || at.Signer == nil || !strings.Contains(at.Signer.Name, "alice@example.com") {
				t.Errorf("signed by %+v, error %v", at, err)
			} else if _, err := at.Trust.Tag("coredns/v1.0.0"); err != nil {
				t.Error(err)
			}
			s.git("verify-commit", "HEAD")
			s.git("commit", "-q", "--allow-empty", "-m", "unsigned")
			fatal(t, r.Fetch(t.Context()))
			if _, err := r.Admit(t.Context(), ""); err == nil {
				t.Error("an unsigned commit was admitted")
			}
		})
	}
	t.Run("OfOurs", func(t *testing.T) {
		t.Parallel()
		s := newGitSigner(t, "ssh")
		alice, sign := gittest.SSHKey(t)
		g := gittest.NewRepo(t)
		g.Sign = sign
		writeFleet(g)
		g.Annotate("coredns/v1.0.0", g.Last)
		fatal(t, os.WriteFile(s.keys, []byte(gittest.Allowed(alice, "")), 0o600))
		s.dir = g.Path
		s.git("verify-commit", "main")
		s.git("verify-tag", "coredns/v1.0.0")
	})
}

// Two texts with one SHA-1 can be made, so a signature over it is one of both.
// The library that signs in the other tests makes none.
func TestSHA1(t *testing.T) {
	t.Parallel()
	s := newGitSigner(t, "openpgp")
	s.run("gpg", "--batch", "--quiet", "--passphrase", "", "--quick-gen-key", "bob@example.com", "rsa2048", "sign", "never")
	p := payload()
	s.write("payload", string(p))
	keys := string(s.run("gpg", "--armor", "--export"))
	for hash, want := range map[string]string{"SHA256": "", "SHA1": "insecure message hash algorithm"} {
		signature := s.run("gpg", "--batch", "--armor", "--digest-algo", hash, "-u", "bob@example.com", "--output", "-", "--detach-sign", "payload")
		trusted, err := gitrepo.ParseTrusted([]byte(keys))
		fatal(t, err)
		if _, wrong := trusted.JudgeCommit(signedCommit(p, string(signature))); wrong == "" != (want == "") || !strings.Contains(wrong, want) {
			t.Errorf("%s: wrong %q, want %q", hash, wrong, want)
		}
	}
}

// gitSigner runs git with a key of its own.
type gitSigner struct {
	t         *testing.T
	dir, keys string
	env       []string
}

func newGitSigner(t *testing.T, format string) *gitSigner {
	t.Helper()
	home, err := os.MkdirTemp("", "sign") //nolint:usetesting // gpg-agent's socket needs a short path
	fatal(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(home) })
	s := &gitSigner{t: t, dir: t.TempDir(), keys: filepath.Join(home, "keys"), env: append(os.Environ(),
		"HOME="+home, "GNUPGHOME="+home, "GIT_CONFIG_GLOBAL="+filepath.Join(home, "gitconfig"), "GIT_CONFIG_SYSTEM=/dev/null")}
	config := fmt.Sprintf("[user]\n\tname = Alice\n\temail = alice@example.com\n[gpg]\n\tformat = %s\n[gpg \"ssh\"]\n\tallowedSignersFile = %s\n", format, s.keys)
	if format == "ssh" {
		s.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "x", "-f", filepath.Join(home, "id"))
		public := readFile(t, filepath.Join(home, "id.pub"))
		fatal(t, os.WriteFile(s.keys, append([]byte(`alice@example.com namespaces="git" `), public...), 0o600))
		config += "[user]\n\tsigningkey = " + filepath.Join(home, "id") + "\n"
	} else {
		if _, err := exec.LookPath("gpg"); err != nil {
			t.Skip("needs gpg")
		}
		s.run("gpg", "--batch", "--quiet", "--passphrase", "", "--quick-gen-key", "Alice <alice@example.com>", "ed25519", "sign", "never")
		fatal(t, os.WriteFile(s.keys, s.run("gpg", "--armor", "--export"), 0o600))
		t.Cleanup(func() { s.run("gpgconf", "--kill", "gpg-agent") })
	}
	fatal(t, os.WriteFile(filepath.Join(home, "gitconfig"), []byte(config), 0o600))
	return s
}

func (s *gitSigner) git(args ...string) { s.t.Helper(); s.run("git", args...) }

func (s *gitSigner) run(name string, args ...string) []byte {
	s.t.Helper()
	cmd := exec.Command(name, args...) //nolint:noctx // it also runs when the test has ended
	cmd.Dir, cmd.Env = s.dir, s.env
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		s.t.Fatalf("%s %v: %v\n%s", name, args, err, stderr.Bytes())
	}
	return out
}

func (s *gitSigner) write(name, content string) {
	s.t.Helper()
	path := filepath.Join(s.dir, filepath.FromSlash(name))
	fatal(s.t, os.MkdirAll(filepath.Dir(path), 0o755))
	fatal(s.t, os.WriteFile(path, []byte(content), 0o600))
}
