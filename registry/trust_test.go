package registry_test

import (
	"bytes"
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"errors"
	"fmt"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp/armor"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
	openpgp "github.com/ProtonMail/go-crypto/openpgp/v2"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/hiddeco/sshsig"
	"golang.org/x/crypto/ssh"
	"pgregory.net/rapid"

	"github.com/keelson-io/keelson/registry"
)

// madeAt is when the keys of the tests were made: before every commit.
var madeAt = time.Unix(1_600_000_000, 0).UTC()

// signedAt is when OpenPGP signatures of the tests are made.
var signedAt = time.Unix(1_700_000_000, 0).UTC()

// sshKey makes a key, and a function that signs with it as git does.
func sshKey(t testing.TB) (ssh.Signer, func([]byte) string) {
	t.Helper()
	_, private := newKey(t)
	return sshSignerOf(t, private)
}

func newKey(t testing.TB) (ed25519.PublicKey, ed25519.PrivateKey) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return public, private
}

func sshSignerOf(t testing.TB, private crypto.Signer) (ssh.Signer, func([]byte) string) {
	t.Helper()
	signer, err := ssh.NewSignerFromSigner(private)
	if err != nil {
		t.Fatal(err)
	}
	return signer, func(payload []byte) string { return sshSign(t, signer, "git", payload) }
}

func sshSign(t testing.TB, signer ssh.Signer, namespace string, payload []byte) string {
	t.Helper()
	sig, err := sshsig.Sign(bytes.NewReader(payload), signer, sshsig.HashSHA512, namespace)
	if err != nil {
		t.Fatal(err)
	}
	return string(sshsig.Armor(sig))
}

// allowed is a line of an allowed_signers file.
func allowed(signer ssh.Signer, options string) string {
	return strings.Join(strings.Fields("alice@example.com "+options+" "+string(ssh.MarshalAuthorizedKey(signer.PublicKey()))), " ") + "\n"
}

func pgpAt(at time.Time) *packet.Config {
	return &packet.Config{
		Time: func() time.Time { return at }, Algorithm: packet.PubKeyAlgoEdDSA, DefaultHash: crypto.SHA256,
		RejectMessageHashAlgorithms: map[crypto.Hash]bool{}, RejectHashAlgorithms: map[crypto.Hash]bool{},
	}
}

// pgpKey makes a key; change may change how.
func pgpKey(t testing.TB, change func(*packet.Config)) *openpgp.Entity {
	t.Helper()
	config := pgpAt(madeAt)
	if change != nil {
		change(config)
	}
	e, err := openpgp.NewEntity("Alice", "", "alice@example.com", config)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// pgpPublic is the armored public key.
func pgpPublic(t testing.TB, e *openpgp.Entity) string {
	t.Helper()
	var b bytes.Buffer
	w, err := armor.Encode(&b, "PGP PUBLIC KEY BLOCK", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(e.Serialize(w), w.Close()); err != nil {
		t.Fatal(err)
	}
	return b.String() + "\n"
}

func pgpSign(t testing.TB, e *openpgp.Entity, payload []byte, change func(*openpgp.SignParams)) string {
	t.Helper()
	params := &openpgp.SignParams{Config: pgpAt(signedAt)}
	if change != nil {
		change(params)
	}
	var b bytes.Buffer
	if err := openpgp.ArmoredDetachSign(&b, []*openpgp.Entity{e}, bytes.NewReader(payload), params); err != nil {
		t.Fatal(err)
	}
	return b.String() + "\n"
}

// keysFile writes trusted keys.
func keysFile(t testing.TB, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "trusted")
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// payload is a commit without a signature, made at signedAt.
func payload() []byte {
	return []byte("tree 4b825dc642cb6eb9a060e54bf8d69288fbee4904\n" +
		"parent 1234567890123456789012345678901234567890\n" +
		"author A <a@b> 1700000000 +0000\ncommitter A <a@b> 1700000000 +0000\n\na message\n\nand more\n")
}

// withHeader puts a header with a value of several lines behind the committer.
func withHeader(raw []byte, name, value string) []byte {
	value = strings.ReplaceAll(strings.TrimRight(value, "\n"), "\n", "\n ")
	head, message, _ := bytes.Cut(raw, []byte("\n\n"))
	return fmt.Appendf(nil, "%s\n%s %s\n\n%s", head, name, value, message)
}

func signedCommit(raw []byte, signature string) []byte { return withHeader(raw, "gpgsig", signature) }

func TestJudgeCommit(t *testing.T) {
	t.Parallel()
	alice, aliceSigns := sshKey(t)
	mallory, mallorySigns := sshKey(t)
	ok := allowed(alice, "")
	pgp := pgpKey(t, nil)
	public := pgpPublic(t, pgp)
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	rsaSigner, rsaSigns := sshSignerOf(t, rsaKey)

	p := payload()
	other := bytes.Replace(p, []byte("a message"), []byte("a massage"), 1)
	cases := map[string]struct {
		why  string
		keys string
		raw  func() []byte
		want string // "": it is good
	}{
		"SSH": {"What git commit -S makes with gpg.format ssh.", ok, func() []byte { return signedCommit(p, aliceSigns(p)) }, ""},
		"RSA": {"Keys of 2048 bits are still many people's.", allowed(rsaSigner, ""), func() []byte { return signedCommit(p, rsaSigns(p)) }, ""},
		"OpenPGP": {"What git commit -S makes.", public, func() []byte {
			return signedCommit(p, pgpSign(t, pgp, p, nil))
		}, ""},
		"BothKinds": {"One file may hold both kinds of keys.", "# people\n\n" + ok + public, func() []byte {
			return signedCommit(p, pgpSign(t, pgp, p, nil))
		}, ""},
		"Unsigned": {"Nobody vouches for it.", ok, func() []byte { return p }, "it is not signed"},
		"SignatureInMessage": {"A signature in the message is text.", ok, func() []byte {
			return append(bytes.Clone(p), "gpgsig "+aliceSigns(p)...)
		}, "it is not signed"},
		"Stranger": {"A good signature of a key that is not trusted.", ok, func() []byte {
			return signedCommit(p, mallorySigns(p))
		}, "signed by key " + ssh.FingerprintSHA256(mallory.PublicKey()) + ": the key is not among the trusted keys"},
		"StrangerOpenPGP": {"As above.", ok, func() []byte {
			return signedCommit(p, pgpSign(t, pgp, p, nil))
		}, fmt.Sprintf("signed by key %X: the key is not among the trusted keys", pgp.PrimaryKey.Fingerprint)},
		"OtherBytes": {"A signature moved to another commit.", ok, func() []byte {
			return signedCommit(other, aliceSigns(p))
		}, "is not one of these bytes"},
		"OtherBytesOpenPGP": {"As above.", public, func() []byte {
			return signedCommit(other, pgpSign(t, pgp, p, nil))
		}, "does not hold"},
		"Namespace": {"A signed file is no signed commit.", ok, func() []byte {
			return signedCommit(p, sshSign(t, alice, "file", p))
		}, `for "file", and not for git`},
		"NamespaceOfKey": {"The key may sign files only.", allowed(alice, `namespaces="file"`), func() []byte {
			return signedCommit(p, aliceSigns(p))
		}, "its namespaces are file, and not git"},
		"NamespacePattern": {"Patterns, as ssh-keygen matches them.", allowed(alice, `namespaces="file,g?t*"`), func() []byte {
			return signedCommit(p, aliceSigns(p))
		}, ""},
		"NamespaceForbidden": {"What is behind a ! is not allowed.", allowed(alice, `namespaces="*,!git"`), func() []byte {
			return signedCommit(p, aliceSigns(p))
		}, "and not git"},
		"NotYetValid": {"The key was not valid when the commit was made.", allowed(alice, `valid-after="20240101Z"`), func() []byte {
			return signedCommit(p, aliceSigns(p))
		}, "before the key became valid"},
		"NoLongerValid": {"The key was retired before the commit was made.", allowed(alice, `valid-before="20230101Z"`), func() []byte {
			return signedCommit(p, aliceSigns(p))
		}, "when the key was no longer valid"},
		"ValidThen": {"A key that is retired now may have signed then.", allowed(alice, `valid-after="20230101Z",valid-before="20240101000000Z"`), func() []byte {
			return signedCommit(p, aliceSigns(p))
		}, ""},
		"OneOfTwoLines": {"The same key on two lines: one that holds is enough.", allowed(alice, `valid-before="20230101Z"`) + ok, func() []byte {
			return signedCommit(p, aliceSigns(p))
		}, ""},
		"TwoSignatures": {"Which of them counts is where readers differ.", ok, func() []byte {
			return signedCommit(signedCommit(p, mallorySigns(p)), aliceSigns(p))
		}, "more than one signature"},
		"SHA256Header": {"git leaves gpgsig-sha256 out of what is signed, so anything may stand in it.", ok, func() []byte {
			return withHeader(signedCommit(p, aliceSigns(p)), "gpgsig-sha256", "x")
		}, `a header "gpgsig-sha256 x" that no signature covers`},
		"LookalikeHeader": {"As above, of any header that begins so.", ok, func() []byte {
			return withHeader(signedCommit(p, aliceSigns(p)), "gpgsigx", "x")
		}, "that no signature covers"},
		"SecondTree": {"Of two trees, one reader takes the first and another the last.", ok, func() []byte {
			q := withHeader(p, "tree", "1234567890123456789012345678901234567890")
			return signedCommit(q, aliceSigns(q))
		}, `it has the header "tree" where it does not belong`},
		"ParentBehindAuthor": {"As above.", ok, func() []byte {
			q := withHeader(p, "parent", "1234567890123456789012345678901234567890")
			return signedCommit(q, aliceSigns(q))
		}, `it has the header "parent" where it does not belong`},
		"NoTree": {"Signed, but no commit.", ok, func() []byte {
			q := bytes.Replace(p, []byte("tree "), []byte("tent "), 1)
			return signedCommit(q, aliceSigns(q))
		}, "it does not start with its tree"},
		"UpperCaseHash": {"git writes hashes in lower case.", ok, func() []byte {
			q := bytes.Replace(p, []byte("4b825d"), []byte("4B825D"), 1)
			return signedCommit(q, aliceSigns(q))
		}, "it does not start with its tree"},
		"Time": {"A time that is none would make every key valid.", allowed(alice, `valid-before="20230101Z"`), func() []byte {
			q := bytes.Replace(p, []byte("committer A <a@b> 1700000000"), []byte("committer A <a@b> -1700000000"), 1)
			return signedCommit(q, aliceSigns(q))
		}, "which is no time"},
		"Trailing": {"What stands behind the signature in its header, nobody signed.", ok, func() []byte {
			return signedCommit(p, aliceSigns(p)+"and more\n")
		}, "it does not end as one"},
		"TrailingOpenPGP": {"As above.", public, func() []byte {
			return signedCommit(p, pgpSign(t, pgp, p, nil)+"and more\n")
		}, "it does not end as one"},
		"TwoOpenPGP": {"One good signature must not hide another.", public, func() []byte {
			return signedCommit(p, pgpSign(t, pgp, p, nil)+pgpSign(t, pgp, p, nil))
		}, "more than one"},
		"TwoPackets": {"As above, in one armor.", public, func() []byte {
			var b bytes.Buffer
			w, err := armor.Encode(&b, "PGP SIGNATURE", nil)
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				block, err := armor.Decode(strings.NewReader(pgpSign(t, pgp, p, nil)))
				if err != nil {
					t.Fatal(err)
				}
				if _, err := b2w(w, block); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			return signedCommit(p, b.String())
		}, "it holds more than one"},
		"Text": {"A signature over text holds for other line ends, too.", public, func() []byte {
			return signedCommit(p, pgpSign(t, pgp, p, func(s *openpgp.SignParams) { s.TextSig = true }))
		}, "it is not over bytes"},
		"SignatureExpires": {"What runs must not depend on the day.", public, func() []byte {
			return signedCommit(p, pgpSign(t, pgp, p, func(s *openpgp.SignParams) { s.Config.SigLifetimeSecs = 3600 }))
		}, "expires"},
		"Armor": {"Neither kind.", ok, func() []byte { return signedCommit(p, "-----BEGIN SIGNED MESSAGE-----\nx\n") }, "neither of SSH nor of OpenPGP"},
		"Garbage": {"Not base64.", ok, func() []byte {
			return signedCommit(p, "-----BEGIN SSH SIGNATURE-----\n!!!!\n-----END SSH SIGNATURE-----\n")
		}, "can't be read"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			judge(t, c.why, c.keys, c.raw(), c.want)
		})
	}
}

func b2w(w interface{ Write([]byte) (int, error) }, block *armor.Block) (int64, error) {
	var b bytes.Buffer
	if _, err := b.ReadFrom(block.Body); err != nil {
		return 0, err
	}
	return b.WriteTo(w)
}

func judge(t *testing.T, why, keys string, raw []byte, want string) {
	t.Helper()
	trusted, err := registry.ParseTrusted([]byte(keys))
	if err != nil {
		t.Fatal(err)
	}
	signer, wrong := trusted.JudgeCommit(raw)
	switch {
	case want == "" && (wrong != "" || signer.Fingerprint == "" || !strings.Contains(signer.Name, "alice@example.com")):
		t.Errorf("%s: signed by %v, wrong %q; want it to be good", why, signer, wrong)
	case want != "" && !strings.Contains(wrong, want):
		t.Errorf("%s: signed by %v, wrong %q; want %q", why, signer, wrong, want)
	}
}

// What became of an OpenPGP key decides about what it signed, by when it did.
func TestOpenPGPKeys(t *testing.T) {
	t.Parallel()
	p := payload()
	day := 24 * time.Hour
	untilThen := uint32(signedAt.Sub(madeAt)/time.Second) - 1
	cases := map[string]struct {
		why    string
		make   func(*packet.Config)
		change func(*testing.T, *openpgp.Entity)
		want   string
	}{
		"Expired":      {why: "It signed after its end.", make: func(c *packet.Config) { c.KeyLifetimeSecs = untilThen }, want: "when the key was expired"},
		"ExpiredSince": {why: "It signed before its end.", make: func(c *packet.Config) { c.KeyLifetimeSecs = untilThen + 60 }},
		"MadeLater": {
			why: "A key can't have signed before it was made.", make: func(c *packet.Config) { c.Time = pgpAt(signedAt.Add(day)).Time },
			want: "does not hold",
		},
		"Compromised": {why: "Whoever has it may have dated the signature back.", change: func(t *testing.T, e *openpgp.Entity) {
			fatal(t, e.Revoke(packet.KeyCompromised, "", pgpAt(signedAt.Add(day))))
		}, want: "the key is revoked"},
		"Revoked": {why: "Before the signature, for any reason.", change: func(t *testing.T, e *openpgp.Entity) {
			fatal(t, e.Revoke(packet.KeyRetired, "", pgpAt(signedAt.Add(-day))))
		}, want: "the key is revoked"},
		"Subkey": {why: "As keys of people who keep the primary key away.", change: func(t *testing.T, e *openpgp.Entity) {
			fatal(t, e.AddSigningSubkey(pgpAt(madeAt)))
		}},
		"SubkeyExpired": {why: "The subkey has an end of its own.", change: func(t *testing.T, e *openpgp.Entity) {
			config := pgpAt(madeAt)
			config.KeyLifetimeSecs = untilThen
			fatal(t, e.AddSigningSubkey(config))
		}, want: "does not hold"},
		"SubkeyRevoked": {why: "The subkey was stolen.", change: func(t *testing.T, e *openpgp.Entity) {
			fatal(t, e.AddSigningSubkey(pgpAt(madeAt)))
			fatal(t, e.Subkeys[len(e.Subkeys)-1].Revoke(packet.KeyCompromised, "", pgpAt(signedAt.Add(day))))
		}, want: "does not hold"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := pgpKey(t, c.make)
			signature := ""
			if strings.HasPrefix(name, "Subkey") {
				// The signature is made with the subkey while it is still good.
				c.change(t, e)
				signature = signWith(t, e.Subkeys[len(e.Subkeys)-1].PrivateKey, p)
			} else {
				signature = signWith(t, e.PrivateKey, p)
				if c.change != nil {
					c.change(t, e)
				}
			}
			judge(t, c.why, pgpPublic(t, e), signedCommit(p, signature), c.want)
		})
	}
}

func fatal(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// signWith signs with a key, whatever became of it: a thief does not ask.
func signWith(t testing.TB, key *packet.PrivateKey, payload []byte) string {
	t.Helper()
	sig := &packet.Signature{
		Version: 4, SigType: packet.SigTypeBinary, PubKeyAlgo: key.PubKeyAlgo, Hash: crypto.SHA256,
		CreationTime: signedAt, IssuerKeyId: &key.KeyId, IssuerFingerprint: key.Fingerprint,
	}
	h := crypto.SHA256.New()
	h.Write(payload)
	fatal(t, sig.Sign(h, key, pgpAt(signedAt)))
	var b bytes.Buffer
	w, err := armor.Encode(&b, "PGP SIGNATURE", nil)
	fatal(t, err)
	fatal(t, errors.Join(sig.Serialize(w), w.Close()))
	return b.String() + "\n"
}

func TestTrustedKeysFile(t *testing.T) {
	t.Parallel()
	alice, _ := sshKey(t)
	small, err := rsa.GenerateKey(rand.Reader, 1024)
	fatal(t, err)
	weak, _ := sshSignerOf(t, small)
	key := strings.TrimSpace(string(ssh.MarshalAuthorizedKey(alice.PublicKey())))
	cases := map[string]struct{ why, content, want string }{
		"Comment":       {"Comments and empty lines.", "# x\n\n" + allowed(alice, ""), ""},
		"Quoted":        {"Principals may be quoted.", `"alice,bob" ` + key, ""},
		"NoPrincipal":   {"A line of authorized_keys has no principal.", key, "1: behind the principal"},
		"NoKey":         {"A word alone.", "\nalice@example.com\n", "2: behind the principal"},
		"Option":        {"An option that is not known may forbid what it seems to allow.", "a x-only " + key, `1: the option "x-only" is not known`},
		"CertAuthority": {"Certificates are not read, so they must not seem to be.", "a cert-authority " + key, "cert-authority is not supported"},
		"Date":          {"A date that is none.", `a valid-after="soon" ` + key, `"soon" is no time`},
		"DateDay":       {"As above.", `a valid-after="20231341" ` + key, "is no time"},
		"DatesSwapped":  {"Never valid.", `a valid-after="20240101Z",valid-before="20230101Z" ` + key, "valid-after is not before"},
		"RSA1024":       {"Too short for today.", allowed(weak, ""), "an RSA key needs at least 2048 bits"},
		"DSA":           {"Weak.", "a " + dsaLine(), "ssh-dss"},
		"PrivateSSH":    {"A private key does not belong there.", "-----BEGIN OPENSSH PRIVATE KEY-----\nx\n", "this is no public key"},
		"PrivatePGP":    {"As above.", "-----BEGIN PGP PRIVATE KEY BLOCK-----\nx\n", "this is no public key"},
		"NoEnd":         {"A file that was cut off.", strings.Split(pgpPublic(t, pgpKey(t, nil)), "-----END")[0], "1: this OpenPGP key has no end"},
		"Damaged":       {"As above.", "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nxxxx\n-----END PGP PUBLIC KEY BLOCK-----\n", "1: this OpenPGP key can't be used"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := registry.ParseTrusted([]byte(c.content))
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%s: %v; want %q", c.why, err, c.want)
			}
		})
	}
}

// dsaLine is what looks like a DSA key, as OpenSSH writes it.
func dsaLine() string {
	bits := func(n uint) *big.Int { return new(big.Int).SetBit(big.NewInt(1), int(n)-1, 1) }
	wire := ssh.Marshal(struct {
		Name       string
		P, Q, G, Y *big.Int
	}{"ssh-dss", bits(1024), bits(160), bits(1000), bits(1000)})
	return "ssh-dss " + base64.StdEncoding.EncodeToString(wire)
}

// Any bit of what is signed matters; a bit of the signature's own armor may be
// one that nobody reads, but never makes it another signer's.
func TestFlippedBits(t *testing.T) {
	t.Parallel()
	alice, aliceSigns := sshKey(t)
	pgp := pgpKey(t, nil)
	keys, err := registry.ParseTrusted([]byte(allowed(alice, "") + pgpPublic(t, pgp)))
	fatal(t, err)
	p := payload()
	tag := []byte("object 1234567890123456789012345678901234567890\ntype commit\ntag web/v1.0.0\ntagger A <a@b> 1700000000 +0000\n\nm\n")
	pgpSigns := func(b []byte) string { return pgpSign(t, pgp, b, nil) }
	for name, sign := range map[string]func([]byte) string{"SSH": aliceSigns, "OpenPGP": pgpSigns} {
		for kind, raw := range map[string][]byte{
			"Commit": signedCommit(p, sign(p)),
			"Tag":    append(bytes.Clone(tag), sign(tag)...),
		} {
			t.Run(name+kind, func(t *testing.T) {
				t.Parallel()
				verdict := func(b []byte) (registry.Signer, string) {
					if kind == "Tag" {
						return keys.JudgeTag(b, "web/v1.0.0")
					}
					return keys.JudgeCommit(b)
				}
				want, wrong := verdict(raw)
				if wrong != "" {
					t.Fatal(wrong)
				}
				begin := bytes.Index(raw, []byte("-----BEGIN"))
				end := bytes.LastIndex(raw, []byte("-----END"))
				for i := range raw {
					for bit := range 8 {
						flipped := bytes.Clone(raw)
						flipped[i] ^= 1 << bit
						got, wrong := verdict(flipped)
						inside := i >= begin && i < end+len("-----END PGP SIGNATURE-----")
						switch {
						case wrong != "":
						case !inside || name == "SSH":
							t.Fatalf("bit %d of byte %d (%q) is flipped, and it is still signed", bit, i, raw[i])
						case got != want:
							t.Fatalf("bit %d of byte %d makes it signed by %v", bit, i, got)
						}
					}
				}
			})
		}
	}
}

// No edit of a signed commit is signed.
func TestEditedCommits(t *testing.T) {
	t.Parallel()
	alice, aliceSigns := sshKey(t)
	keys, err := registry.ParseTrusted([]byte(allowed(alice, "")))
	fatal(t, err)
	p := payload()
	raw := signedCommit(p, aliceSigns(p))
	lines := bytes.SplitAfter(raw, []byte("\n"))
	rapid.Check(t, func(t *rapid.T) {
		edited := append([][]byte(nil), lines...)
		for range rapid.IntRange(1, 3).Draw(t, "edits") {
			i, j := rapid.IntRange(0, len(edited)-1).Draw(t, "i"), rapid.IntRange(0, len(edited)-1).Draw(t, "j")
			switch rapid.SampledFrom([]string{"swap", "repeat", "drop", "insert"}).Draw(t, "edit") {
			case "swap":
				edited[i], edited[j] = edited[j], edited[i]
			case "repeat":
				edited = append(edited[:i+1:i+1], append([][]byte{edited[j]}, edited[i+1:]...)...)
			case "drop":
				if len(edited) > 1 {
					edited = append(edited[:i:i], edited[i+1:]...)
				}
			case "insert":
				line := rapid.SampledFrom([]string{" x\n", "\n", "gpgsig x\n", "tree x\n", "gpgsig-sha256 y\n", "\x00"}).Draw(t, "line")
				edited = append(edited[:i:i], append([][]byte{[]byte(line)}, edited[i:]...)...)
			}
		}
		got := bytes.Join(edited, nil)
		if _, wrong := keys.JudgeCommit(got); wrong == "" && !bytes.Equal(got, raw) {
			t.Fatalf("an edited commit is still signed:\n%s", got)
		}
	})
}

// signedRepo is a fleet whose commits and tags alice signs.
func signedRepo(t *testing.T) (g *gitRepo, keys string, sign func([]byte) string) {
	t.Helper()
	alice, sign := sshKey(t)
	g = newGitRepo(t)
	g.sign = sign
	g.writeFleet()
	return g, keysFile(t, allowed(alice, "")), sign
}

func TestSignedBranch(t *testing.T) {
	t.Parallel()
	_, stranger := sshKey(t)
	cases := map[string]struct {
		why    string
		change func(g *gitRepo)
		want   string // of the error; "": the new commit is loaded
	}{
		"Signed":   {"An ordinary commit.", func(g *gitRepo) { g.commit() }, ""},
		"Unsigned": {"Who may push may not change a cluster.", func(g *gitRepo) { g.sign = nil; g.commit() }, "is not to be trusted: it is not signed"},
		"Stranger": {"As above, with a key.", func(g *gitRepo) { g.sign = stranger; g.commit() }, "the key is not among the trusted keys"},
		"UnsignedBelow": {"The head vouches for what it builds on: it is a person's decision to sign it.", func(g *gitRepo) {
			sign := g.sign
			g.sign = nil
			g.commit()
			g.sign = sign
			g.commit()
		}, ""},
		"Rewound": {"Back to a commit that was good once.", func(g *gitRepo) {
			g.ref("refs/heads/main", mustCommit(g.t, g.storage, g.last).ParentHashes[0])
		}, "branch HEAD was rewound"},
		"Aside": {"A signed commit of another history.", func(g *gitRepo) {
			g.last = mustCommit(g.t, g.storage, g.last).ParentHashes[0]
			g.write("README.md", "aside")
			g.commit()
		}, "does not descend from"},
		"Merge": {"The accepted commit is the second parent.", func(g *gitRepo) {
			before := g.last
			c := mustCommit(g.t, g.storage, before)
			c.ParentHashes = []plumbing.Hash{c.ParentHashes[0], before}
			c.PGPSignature = g.sign(g.payload(c))
			g.ref("refs/heads/main", g.store(c))
		}, ""},
		"VerifyRemoved": {"Who may push may remove the line from fleet.yaml: the keys decide.", func(g *gitRepo) {
			g.sign = nil
			g.write("fleet.yaml", strings.Replace(string(readFleetFile(g)), "verify: signed\n", "", 1))
			g.commit()
		}, "it is not signed"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, keys, _ := signedRepo(t)
			g.write("fleet.yaml", string(readFleetFile(g))+"verify: signed\n")
			g.commit()
			g.commit()
			url := g.path
			if name != "Signed" {
				url = serveGit(t, g).url()
			}
			opts := registry.Options{URL: url, CacheDir: t.TempDir(), TrustedKeys: []string{keys}}
			r, err := registry.Open(t.Context(), opts)
			fatal(t, err)
			before := load(t, r, "")
			if before.Signer == nil || before.Signer.Name != "alice@example.com" {
				t.Errorf("signed by %v, want alice", before.Signer)
			}
			c.change(g)
			fatal(t, r.Fetch(t.Context()))
			for _, again := range []string{"AtOnce", "Restarted"} {
				if again == "Restarted" {
					r, err = registry.Open(t.Context(), opts)
					fatal(t, err)
				}
				f, err := r.Load(t.Context(), "")
				switch {
				case c.want == "" && err != nil:
					t.Errorf("%s %s: %v", c.why, again, err)
				case c.want == "" && f.Revision == before.Revision:
					t.Errorf("%s %s: the new commit was not loaded", c.why, again)
				case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
					t.Errorf("%s %s: error %v, want %q", c.why, again, err, c.want)
				}
			}
		})
	}
}

// readFleetFile is the fleet.yaml that the repository holds.
func readFleetFile(g *gitRepo) []byte { return g.bytesOf(g.files["fleet.yaml"].hash) }

// What was loaded by its hash, as a preview does, is not what a branch may go
// to, and is accepted for the branch like any other commit once it is there.
func TestChosenCommit(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		why   string
		loads func(first, second string) []string // revisions, with main at second
	}{
		"LoadedBefore": {"The last Fleet is that of the commit that main goes back to.", func(first, second string) []string {
			return []string{"", first}
		}},
		"OtherBranch": {"As above, by the name of another branch.", func(first, second string) []string {
			return []string{"", "old"}
		}},
		"LoadedFirst": {"main was accepted when its commit was known already.", func(first, second string) []string {
			return []string{second, ""}
		}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, keys, _ := signedRepo(t)
			first := g.last
			g.ref("refs/heads/old", first)
			second := g.commit()
			r, err := registry.Open(t.Context(), registry.Options{URL: g.path, CacheDir: t.TempDir(), TrustedKeys: []string{keys}})
			fatal(t, err)
			for _, rev := range c.loads(first.String(), second.String()) {
				load(t, r, rev)
			}
			g.ref("refs/heads/main", first)
			fatal(t, r.Fetch(t.Context()))
			if _, err := r.Load(t.Context(), ""); err == nil || !strings.Contains(err.Error(), "branch HEAD was rewound") {
				t.Errorf("%s error %v; want one that says that the branch was rewound", c.why, err)
			}
		})
	}
}

// A tag that a new key makes good is remembered from then on, not from the next
// push on.
func TestNewKeyRemembersTags(t *testing.T) {
	t.Parallel()
	g, keys, _ := signedRepo(t)
	bob, bobSigns := sshKey(t)
	alice := g.sign
	g.write("clusters/a/coredns.yaml", "apiVersion: keelson.io/v1alpha1\nkind: MetaConfig\nversion: v2.0.0\n")
	g.commit()
	g.sign = bobSigns
	g.annotate("coredns/v2.0.0", g.last)
	g.sign = alice
	opts := registry.Options{URL: serveGit(t, g).url(), CacheDir: t.TempDir(), TrustedKeys: []string{keys}}
	r, err := registry.Open(t.Context(), opts)
	fatal(t, err)
	if problems := load(t, r, "").Problems.Error(); !strings.Contains(problems, "the key is not among the trusted keys") {
		t.Fatalf("a stranger's tag: %s", problems)
	}
	fatal(t, os.WriteFile(keys, append(readFile(t, keys), allowed(bob, "")...), 0o600))
	fatal(t, r.Fetch(t.Context()))
	if err := load(t, r, "").Problems.Err(); err != nil {
		t.Fatalf("with his key: %v", err)
	}
	g.commit()
	g.sign = bobSigns
	g.annotate("coredns/v2.0.0", g.last)
	fatal(t, r.Fetch(t.Context()))
	if problems := load(t, r, "").Problems.Error(); !strings.Contains(problems, "tag coredns/v2.0.0 was moved") {
		t.Errorf("the version is another now: %q", problems)
	}
}

// A rewind is allowed outside of the repository, to one commit, once.
func TestAcceptRewind(t *testing.T) {
	t.Parallel()
	g, keys, _ := signedRepo(t)
	first := g.last
	g.commit()
	g.commit()
	opts := registry.Options{URL: g.path, CacheDir: t.TempDir(), TrustedKeys: []string{keys}}
	at := func(rewind plumbing.Hash) (*registry.Fleet, error) {
		t.Helper()
		o := opts
		if !rewind.IsZero() {
			o.AcceptRewind = rewind.String()
		}
		r, err := registry.Open(t.Context(), o)
		fatal(t, err)
		return r.Load(t.Context(), "")
	}
	if _, err := at(plumbing.ZeroHash); err != nil {
		t.Fatal(err)
	}
	second := g.last
	g.ref("refs/heads/main", first)
	_, err := at(plumbing.ZeroHash)
	if err == nil || !strings.Contains(err.Error(), "--accept-rewind "+first.String()) {
		t.Fatalf("error %v; want one that says how to go on", err)
	}
	if _, err := at(second); err == nil {
		t.Error("a rewind to another commit than the one allowed was accepted")
	}
	if f, err := at(first); err != nil || f.Revision != first.String() {
		t.Fatalf("a rewind that was allowed: %v", err)
	}
	if _, err := at(plumbing.ZeroHash); err != nil {
		t.Errorf("after it: %v", err)
	}
	// Forward again, and back once more: the setting is still there, and spent.
	g.last = first
	g.write("README.md", "new")
	g.commit()
	if _, err := at(first); err != nil {
		t.Fatal(err)
	}
	g.ref("refs/heads/main", first)
	if _, err := at(first); err == nil || !strings.Contains(err.Error(), "was rewound") {
		t.Errorf("the same rewind once more: %v; want an error", err)
	}
	if _, err := registry.Open(t.Context(), registry.Options{URL: g.path, CacheDir: t.TempDir(), AcceptRewind: "main"}); err == nil {
		t.Error("a branch was taken for a commit")
	}
}

func TestSignedTags(t *testing.T) {
	t.Parallel()
	_, stranger := sshKey(t)
	cases := map[string]struct {
		why    string
		verify string
		change func(g *gitRepo)
		want   string // of the problem; "": none
	}{
		"Signed": {"What git tag -s makes.", "signed-tags", func(g *gitRepo) { g.annotate("coredns/v2.0.0", g.last) }, ""},
		"Lightweight": {"It is only a name of a commit that is signed.", "signed", func(g *gitRepo) {
			g.tag("coredns/v2.0.0")
		}, ""},
		"LightweightRefused": {"The fleet wants its tags signed.", "signed-tags", func(g *gitRepo) {
			g.tag("coredns/v2.0.0")
		}, "tag coredns/v2.0.0 is lightweight, and fleet.yaml wants tags that are signed themselves"},
		"LightweightUnsigned": {"A name of a commit that nobody signed.", "signed", func(g *gitRepo) {
			sign := g.sign
			g.sign = nil
			g.ref("refs/tags/coredns/v2.0.0", g.object())
			g.sign = sign
		}, "of the lightweight tag coredns/v2.0.0 is not to be trusted: it is not signed"},
		"Annotated": {"Who annotates can sign.", "signed", func(g *gitRepo) {
			sign := g.sign
			g.sign = nil
			g.annotate("coredns/v2.0.0", g.last)
			g.sign = sign
		}, "tag coredns/v2.0.0 is not to be trusted: it is not signed"},
		"Stranger": {"A key that is not trusted.", "signed", func(g *gitRepo) {
			sign := g.sign
			g.sign = stranger
			g.annotate("coredns/v2.0.0", g.last)
			g.sign = sign
		}, "the key is not among the trusted keys"},
		"Replayed": {"An old version's signed tag under a new version's name.", "signed", func(g *gitRepo) {
			g.ref("refs/tags/coredns/v2.0.0", g.annotate("coredns/v1.5.0", g.last))
		}, `it was made as tag "coredns/v1.5.0"`},
		"OfAnother": {"A signed tag of another component.", "signed", func(g *gitRepo) {
			g.ref("refs/tags/coredns/v2.0.0", g.annotate("web/v2.0.0", g.last))
		}, `it was made as tag "web/v2.0.0"`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, keys, _ := signedRepo(t)
			g.write("fleet.yaml", string(readFleetFile(g))+"verify: "+c.verify+"\n")
			g.annotate("coredns/v1.0.0", g.last) // the other cluster's, signed
			c.change(g)
			g.write("clusters/a/coredns.yaml", "apiVersion: keelson.io/v1alpha1\nkind: MetaConfig\nversion: v2.0.0\n")
			g.commit()
			r, err := registry.Open(t.Context(), registry.Options{URL: g.path, CacheDir: t.TempDir(), TrustedKeys: []string{keys}})
			fatal(t, err)
			f := load(t, r, "")
			a, b := f.Cluster("a").Delivery("coredns"), f.Cluster("b").Delivery("coredns")
			if len(b.Problems) > 0 || b.Version == nil {
				t.Errorf("%s: the other cluster's version is blocked, too: %v", c.why, b.Problems)
			}
			switch got := a.Problems.Error(); {
			case c.want == "" && (got != "" || a.Version == nil):
				t.Errorf("%s: %s", c.why, got)
			case c.want != "" && (!strings.Contains(got, c.want) || a.Version != nil):
				t.Errorf("%s: problems %q, version %v; want %q and none", c.why, got, a.Version, c.want)
			}
		})
	}
}

// Who may push but not sign must not get to take a version's name.
func TestUnsignedTagIsNotRemembered(t *testing.T) {
	t.Parallel()
	g, keys, sign := signedRepo(t)
	opts := registry.Options{URL: g.path, CacheDir: t.TempDir(), TrustedKeys: []string{keys}}
	good := g.last
	g.sign = nil
	g.annotate("coredns/v2.0.0", g.object())
	g.sign = sign
	r, err := registry.Open(t.Context(), opts)
	fatal(t, err)
	load(t, r, "")
	g.annotate("coredns/v2.0.0", good)
	g.write("clusters/a/coredns.yaml", "apiVersion: keelson.io/v1alpha1\nkind: MetaConfig\nversion: v2.0.0\n")
	g.commit()
	fatal(t, r.Fetch(t.Context()))
	if err := load(t, r, "").Problems.Err(); err != nil {
		t.Errorf("the good tag, after a bad one of the same name: %v", err)
	}
}

func TestVerifyNeedsKeys(t *testing.T) {
	t.Parallel()
	g, keys, _ := signedRepo(t)
	g.write("fleet.yaml", string(readFleetFile(g))+"verify: signed\n")
	g.commit()
	if _, err := open(t, g.path).Load(t.Context(), ""); err == nil || !strings.Contains(err.Error(), "give --trusted-keys FILE") {
		t.Errorf("loaded a signed repository without keys: %v", err)
	}
	for why, files := range map[string][]string{
		"not there":      {filepath.Join(t.TempDir(), "none")},
		"empty":          {keysFile(t, "# nobody yet\n")},
		"one is damaged": {keys, keysFile(t, "x\n")},
		"inside":         {filepath.Join(g.path, "config")},
	} {
		if _, err := registry.Open(t.Context(), registry.Options{URL: g.path, CacheDir: t.TempDir(), TrustedKeys: files}); err == nil {
			t.Errorf("opened with trusted keys that are %s", why)
		}
	}
}

// A key that is taken out of the file counts no longer, without a restart.
func TestKeyRemoved(t *testing.T) {
	t.Parallel()
	g, keys, _ := signedRepo(t)
	r, err := registry.Open(t.Context(), registry.Options{URL: g.path, CacheDir: t.TempDir(), TrustedKeys: []string{keys}})
	fatal(t, err)
	load(t, r, "")
	bob, _ := sshKey(t)
	fatal(t, os.WriteFile(keys, []byte(allowed(bob, "")), 0o600))
	if _, err := r.Load(t.Context(), ""); err == nil || !strings.Contains(err.Error(), "not among the trusted keys") {
		t.Errorf("loaded what a removed key signed: %v", err)
	}
	fatal(t, os.Remove(keys))
	if _, err := r.Load(t.Context(), ""); err == nil || !strings.Contains(err.Error(), "read trusted keys") {
		t.Errorf("loaded without the file of keys: %v", err)
	}
}

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
			for name, content := range baseFleet(t) {
				s.write(name, content)
			}
			s.git("init", "-q", "-b", "main")
			s.git("add", ".")
			s.git("commit", "-q", "-S", "-m", "subject\n\nbody")
			s.git("tag", "-s", "-m", "a version", "coredns/v1.0.0")
			r, err := registry.Open(t.Context(), registry.Options{URL: s.dir, CacheDir: t.TempDir(), TrustedKeys: []string{s.keys}})
			fatal(t, err)
			f := load(t, r, "")
			if err := f.Problems.Err(); err != nil || f.Signer == nil || !strings.Contains(f.Signer.Name, "alice@example.com") {
				t.Errorf("signed by %v, problems %v", f.Signer, err)
			}
			s.git("verify-commit", "HEAD")
			s.git("commit", "-q", "--allow-empty", "-m", "unsigned")
			fatal(t, r.Fetch(t.Context()))
			if _, err := r.Load(t.Context(), ""); err == nil {
				t.Error("an unsigned commit was loaded")
			}
		})
	}
	t.Run("OfOurs", func(t *testing.T) {
		t.Parallel()
		s := newGitSigner(t, "ssh")
		alice, sign := sshKey(t)
		g := newGitRepo(t)
		g.sign = sign
		g.writeFleet()
		g.annotate("coredns/v1.0.0", g.last)
		fatal(t, os.WriteFile(s.keys, []byte(allowed(alice, "")), 0o600))
		s.dir = g.path
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
		trusted, err := registry.ParseTrusted([]byte(keys))
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
