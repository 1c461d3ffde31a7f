//go:build !race

package gitrepo_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/keelson-io/keelson/registry/gitrepo"
	"github.com/keelson-io/keelson/registry/gitrepo/gittest"
)

// Whatever a file of trusted keys holds, reading it ends, and an error names a
// line.
func FuzzTrustedKeys(f *testing.F) {
	alice, _ := gittest.SSHKey(f)
	f.Add([]byte(gittest.Allowed(alice, "")))
	f.Add([]byte(gittest.Allowed(alice, `namespaces="git,file",valid-after="20230101Z",valid-before="202401010000"`)))
	f.Add([]byte(`"a b" cert-authority ` + gittest.Allowed(alice, "")))
	f.Add([]byte(pgpPublic(f, pgpKey(f, nil))))
	f.Add([]byte("# x\n-----BEGIN PGP PUBLIC KEY BLOCK-----\n"))
	p := payload()
	f.Fuzz(func(t *testing.T, data []byte) {
		keys, err := gitrepo.ParseTrusted(data)
		if err != nil {
			if line, _, ok := strings.Cut(err.Error(), ":"); !ok || line == "" || strings.Trim(line, "0123456789") != "" {
				t.Errorf("the error names no line: %v", err)
			}
			return
		}
		if _, wrong := keys.JudgeCommit(p); wrong == "" {
			t.Error("an unsigned commit is signed")
		}
	})
}

// Whatever a credentials file holds, what comes out are exact addresses.
func FuzzCredentials(f *testing.F) {
	f.Add([]byte("https://git.example.com: {username: a, password: b}\n"))
	f.Add([]byte("ssh://git.example.com:2222: {keyFile: /k}\nhttp://[::1]:80: {token: x}\n"))
	f.Add([]byte("https://a: &x {token: b}\nhttps://b: *x\n"))
	f.Add([]byte("ssh://00000000000:0000::")) // a port in a port
	f.Fuzz(func(t *testing.T, data []byte) {
		addresses, err := gitrepo.ParseCredentials(data)
		if err != nil {
			return
		}
		for _, a := range addresses {
			again, err := gitrepo.ParseCredentials(fmt.Appendf(nil, "%q: {}\n", a))
			if err != nil || len(again) != 1 || again[0] != a {
				t.Errorf("%q is %v, %v when it is read again", a, again, err)
			}
		}
	})
}

// A signature covers exactly the bytes that were signed. An edit of these bytes, or other
// bytes around the signature, must not pass as signed.
func FuzzSignature(f *testing.F) {
	alice, aliceSigns := gittest.SSHKey(f)
	pgp := pgpKey(f, nil)
	keys, err := gitrepo.ParseTrusted([]byte(gittest.Allowed(alice, "") + pgpPublic(f, pgp)))
	fatal(f, err)
	p := payload()
	tag := []byte("object 1234567890123456789012345678901234567890\ntype commit\ntag web/v1.0.0\ntagger A <a@b> 1700000000 +0000\n\nm\n")
	commits := map[string]bool{}
	for _, signature := range []string{aliceSigns(p), pgpSign(f, pgp, p, nil)} {
		raw := signedCommit(p, signature)
		commits[string(raw)] = true
		for _, seed := range [][]byte{raw, raw[:len(raw)-1], bytes.Replace(raw, []byte("tree"), []byte("tree x\ntree"), 1)} {
			f.Add(seed, 0, []byte(nil))
			f.Add(seed, 100, []byte("gpgsig x\n"))
		}
		f.Add(append(bytes.Clone(tag), signature...), 10, []byte("\n"))
	}
	f.Fuzz(func(t *testing.T, raw []byte, at int, insert []byte) {
		if at >= 0 && at <= len(raw) {
			raw = append(append(bytes.Clone(raw[:at]), insert...), raw[at:]...)
		}
		if _, wrong := keys.JudgeCommit(raw); wrong == "" && !bytes.Equal(unsigned(raw), p) {
			t.Errorf("an unsigned commit passes as signed:\n%s", raw)
		}
		if _, wrong := keys.JudgeTag(raw, "web/v1.0.0"); wrong == "" && !bytes.HasPrefix(raw, append(bytes.Clone(tag), "-----BEGIN "...)) {
			t.Errorf("an unsigned tag passes as signed:\n%s", raw)
		}
	})
}

// Whatever a pack holds, looking at it ends, within its limits.
func FuzzPack(f *testing.F) {
	p := newPack(2)
	base := p.object(packBlob, 5, nil, strings.NewReader("hello"))
	d := delta(5, 5, 0x90, 5)
	p.object(packOFS, uint64(len(d)), ofs(p.Len()-base), bytes.NewReader(d))
	f.Add(p.done())
	f.Add([]byte("PACK\x00\x00\x00\x02\xff\xff\xff\xff"))
	limits := gitrepo.Limits{Objects: 1000, ObjectBytes: 1 << 16, InflatedBytes: 1 << 20}
	file, err := os.Create(filepath.Join(f.TempDir(), "pack"))
	fatal(f, err)
	f.Cleanup(func() { _ = file.Close() })
	f.Fuzz(func(t *testing.T, data []byte) {
		fatal(t, file.Truncate(0))
		if _, err := file.WriteAt(data, 0); err != nil {
			t.Fatal(err)
		}
		if err := gitrepo.CheckPack(t.Context(), file, limits); err == nil && !bytes.HasPrefix(data, []byte("PACK")) {
			t.Error("it is no pack, and passes")
		}
	})
}

// unsigned is a commit without its gpgsig header, cut out in the plainest way.
func unsigned(raw []byte) []byte {
	head, message, ok := bytes.Cut(raw, []byte("\n\n"))
	if !ok {
		return nil
	}
	var lines []string
	inside := false
	for line := range strings.SplitSeq(string(head), "\n") {
		inside = strings.HasPrefix(line, "gpgsig ") || inside && strings.HasPrefix(line, " ")
		if !inside {
			lines = append(lines, line)
		}
	}
	return []byte(strings.Join(lines, "\n") + "\n\n" + string(message))
}
