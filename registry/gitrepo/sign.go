package gitrepo

import (
	"bytes"
	"fmt"

	"github.com/hiddeco/sshsig"
	"golang.org/x/crypto/ssh"
)

// SignWith returns a function that signs commits with an SSH key, like git with gpg.format=ssh. The
// file is read at each call, because keys are replaced.
func SignWith(file string) func(payload []byte) (string, error) {
	return func(payload []byte) (string, error) {
		pem, err := readSmall(file)
		if err != nil {
			return "", fmt.Errorf("read the signing key: %w", err)
		}
		key, err := ssh.ParsePrivateKey(pem)
		if err != nil {
			return "", fmt.Errorf("read the signing key %s: %w", file, err)
		}
		signature, err := sshsig.Sign(bytes.NewReader(payload), key, sshsig.HashSHA512, sshNamespace)
		if err != nil {
			return "", fmt.Errorf("sign with %s: %w", file, err)
		}
		return string(sshsig.Armor(signature)), nil
	}
}
