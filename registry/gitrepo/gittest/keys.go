package gittest

import (
	"bytes"
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hiddeco/sshsig"
	"golang.org/x/crypto/ssh"
)

// SSHKey makes a key, and a function that signs with it as git does.
func SSHKey(t testing.TB) (ssh.Signer, func([]byte) string) {
	t.Helper()
	_, private := NewKey(t)
	return SSHSignerOf(t, private)
}

// NewKey makes an Ed25519 key.
func NewKey(t testing.TB) (ed25519.PublicKey, ed25519.PrivateKey) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return public, private
}

// SSHSignerOf returns the SSH key of a private key, and a function that signs with it as git does.
func SSHSignerOf(t testing.TB, private crypto.Signer) (ssh.Signer, func([]byte) string) {
	t.Helper()
	signer, err := ssh.NewSignerFromSigner(private)
	if err != nil {
		t.Fatal(err)
	}
	return signer, func(payload []byte) string { return SSHSign(t, signer, "git", payload) }
}

// SSHSign returns an armored signature in a namespace.
func SSHSign(t testing.TB, signer ssh.Signer, namespace string, payload []byte) string {
	t.Helper()
	sig, err := sshsig.Sign(bytes.NewReader(payload), signer, sshsig.HashSHA512, namespace)
	if err != nil {
		t.Fatal(err)
	}
	return string(sshsig.Armor(sig))
}

// Allowed is a line of an allowed_signers file.
func Allowed(signer ssh.Signer, options string) string {
	return strings.Join(strings.Fields("alice@example.com "+options+" "+string(ssh.MarshalAuthorizedKey(signer.PublicKey()))), " ") + "\n"
}

// KeysFile writes trusted keys.
func KeysFile(t testing.TB, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "trusted")
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
