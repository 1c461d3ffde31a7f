package gitrepo

import (
	"context"
	"maps"
	"os"
	"slices"
)

// What the tests need and users don't.

// TrustedKeys are keys as they stand in a file of them.
type TrustedKeys = trustedKeys

// ParseTrusted reads a file of trusted keys.
func ParseTrusted(data []byte) (*TrustedKeys, error) {
	keys := &trustedKeys{}
	return keys, keys.parse(data)
}

// JudgeCommit and JudgeTag judge the bytes of an object.
func (t *trustedKeys) JudgeCommit(raw []byte) (Signer, string) {
	v := t.judgeCommit(raw)
	return v.signer, v.wrong
}

func (t *trustedKeys) JudgeTag(raw []byte, name string) (Signer, string) {
	v := t.judgeTag(raw, name)
	return v.signer, v.wrong
}

// CheckPack checks the bytes of a pack.
func CheckPack(ctx context.Context, f *os.File, limits Limits) error {
	_, err := indexPack(ctx, f, limits.withDefaults())
	return err
}

// ParseCredentials reads a credentials file, and returns its addresses.
func ParseCredentials(data []byte) ([]string, error) {
	c, err := parseCredentials("logins.yaml", data)
	return slices.Sorted(maps.Keys(c)), err
}

// SeenLine is a line of the memory of tags, and its length as it is counted.
func SeenLine(tag string) (line string, size int) { return seenLine(tag, firstSeen{}), seenSize(tag) }
