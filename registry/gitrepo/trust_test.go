package gitrepo_test

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp/armor"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
	openpgp "github.com/ProtonMail/go-crypto/openpgp/v2"
	"golang.org/x/crypto/ssh"
	"pgregory.net/rapid"

	"github.com/keelson-io/keelson/registry/gitrepo"
	"github.com/keelson-io/keelson/registry/gitrepo/gittest"
)

// madeAt is when the keys of the tests were made: before every commit.
var madeAt = time.Unix(1_600_000_000, 0).UTC()

// signedAt is when OpenPGP signatures of the tests are made.
var signedAt = time.Unix(1_700_000_000, 0).UTC()

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
	alice, aliceSigns := gittest.SSHKey(t)
	mallory, mallorySigns := gittest.SSHKey(t)
	ok := gittest.Allowed(alice, "")
	pgp := pgpKey(t, nil)
	public := pgpPublic(t, pgp)
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	rsaSigner, rsaSigns := gittest.SSHSignerOf(t, rsaKey)

	p := payload()
	other := bytes.Replace(p, []byte("a message"), []byte("a massage"), 1)
	cases := map[string]struct {
		why  string
		keys string
		raw  func() []byte
		want string // "": it is good
	}{
		"SSH": {"What git commit -S makes with gpg.format ssh.", ok, func() []byte { return signedCommit(p, aliceSigns(p)) }, ""},
		"RSA": {"Keys of 2048 bits are still many people's.", gittest.Allowed(rsaSigner, ""), func() []byte { return signedCommit(p, rsaSigns(p)) }, ""},
		"OpenPGP": {"What git commit -S makes.", public, func() []byte {
			return signedCommit(p, pgpSign(t, pgp, p, nil))
		}, ""},
		"BothKinds": {"One file may hold both kinds of keys.", "# people\n\n" + ok + public, func() []byte {
			return signedCommit(p, pgpSign(t, pgp, p, nil))
		}, ""},
		"Unsigned": {"The commit has no signature.", ok, func() []byte { return p }, "it is not signed"},
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
			return signedCommit(p, gittest.SSHSign(t, alice, "file", p))
		}, `for "file", and not for git`},
		"NamespaceOfKey": {"The key may sign files only.", gittest.Allowed(alice, `namespaces="file"`), func() []byte {
			return signedCommit(p, aliceSigns(p))
		}, "its namespaces are file, and not git"},
		"NamespacePattern": {"Patterns, as ssh-keygen matches them.", gittest.Allowed(alice, `namespaces="file,g?t*"`), func() []byte {
			return signedCommit(p, aliceSigns(p))
		}, ""},
		"NamespaceForbidden": {"What is behind a ! is not allowed.", gittest.Allowed(alice, `namespaces="*,!git"`), func() []byte {
			return signedCommit(p, aliceSigns(p))
		}, "and not git"},
		"NotYetValid": {"The key was not valid when the commit was made.", gittest.Allowed(alice, `valid-after="20240101Z"`), func() []byte {
			return signedCommit(p, aliceSigns(p))
		}, "before the key became valid"},
		"NoLongerValid": {"The key was retired before the commit was made.", gittest.Allowed(alice, `valid-before="20230101Z"`), func() []byte {
			return signedCommit(p, aliceSigns(p))
		}, "when the key was no longer valid"},
		"ValidThen": {"A key that is retired now may have signed then.", gittest.Allowed(alice, `valid-after="20230101Z",valid-before="20240101000000Z"`), func() []byte {
			return signedCommit(p, aliceSigns(p))
		}, ""},
		"OneOfTwoLines": {"The same key on two lines: one that holds is enough.", gittest.Allowed(alice, `valid-before="20230101Z"`) + ok, func() []byte {
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
		"Time": {"A time that is none would make every key valid.", gittest.Allowed(alice, `valid-before="20230101Z"`), func() []byte {
			q := bytes.Replace(p, []byte("committer A <a@b> 1700000000"), []byte("committer A <a@b> -1700000000"), 1)
			return signedCommit(q, aliceSigns(q))
		}, "which is no time"},
		"Trailing": {"Text after the signature in the header is not covered by the signature.", ok, func() []byte {
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
			raw := c.raw() // not in parallel: to sign with an OpenPGP key changes the key
			t.Parallel()
			judge(t, c.why, c.keys, raw, c.want)
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
	trusted, err := gitrepo.ParseTrusted([]byte(keys))
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
	alice, _ := gittest.SSHKey(t)
	small, err := rsa.GenerateKey(rand.Reader, 1024)
	fatal(t, err)
	weak, _ := gittest.SSHSignerOf(t, small)
	key := strings.TrimSpace(string(ssh.MarshalAuthorizedKey(alice.PublicKey())))
	cases := map[string]struct{ why, content, want string }{
		"Comment":       {"Comments and empty lines.", "# x\n\n" + gittest.Allowed(alice, ""), ""},
		"Quoted":        {"Principals may be quoted.", `"alice,bob" ` + key, ""},
		"NoPrincipal":   {"A line of authorized_keys has no principal.", key, "1: behind the principal"},
		"NoKey":         {"A word alone.", "\nalice@example.com\n", "2: behind the principal"},
		"Option":        {"An option that is not known may forbid what it seems to allow.", "a x-only " + key, `1: the option "x-only" is not known`},
		"CertAuthority": {"Certificates are not read, so they must not seem to be.", "a cert-authority " + key, "cert-authority is not supported"},
		"Date":          {"A date that is none.", `a valid-after="soon" ` + key, `"soon" is no time`},
		"DateDay":       {"As above.", `a valid-after="20231341" ` + key, "is no time"},
		"DatesSwapped":  {"Never valid.", `a valid-after="20240101Z",valid-before="20230101Z" ` + key, "valid-after is not before"},
		"RSA1024":       {"Too short for today.", gittest.Allowed(weak, ""), "an RSA key needs at least 2048 bits"},
		"DSA":           {"Weak.", "a " + dsaLine(), "ssh-dss"},
		"PrivateSSH":    {"A private key does not belong there.", "-----BEGIN OPENSSH PRIVATE KEY-----\nx\n", "this is no public key"},
		"PrivatePGP":    {"As above.", "-----BEGIN PGP PRIVATE KEY BLOCK-----\nx\n", "this is no public key"},
		"NoEnd":         {"A file that was cut off.", strings.Split(pgpPublic(t, pgpKey(t, nil)), "-----END")[0], "1: this OpenPGP key has no end"},
		"Damaged":       {"As above.", "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nxxxx\n-----END PGP PUBLIC KEY BLOCK-----\n", "1: this OpenPGP key can't be used"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := gitrepo.ParseTrusted([]byte(c.content))
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

// A flipped bit of signed data always invalidates the signature. A flipped bit of an OpenPGP
// armor may leave the signature valid, but never changes the signer.
func TestFlippedBits(t *testing.T) {
	t.Parallel()
	alice, aliceSigns := gittest.SSHKey(t)
	pgp := pgpKey(t, nil)
	keys, err := gitrepo.ParseTrusted([]byte(gittest.Allowed(alice, "") + pgpPublic(t, pgp)))
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
				verdict := func(b []byte) (gitrepo.Signer, string) {
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
	alice, aliceSigns := gittest.SSHKey(t)
	keys, err := gitrepo.ParseTrusted([]byte(gittest.Allowed(alice, "")))
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
