package gitrepo

import (
	"bytes"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp/armor"
	pgperrors "github.com/ProtonMail/go-crypto/openpgp/errors"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
	openpgp "github.com/ProtonMail/go-crypto/openpgp/v2"
	"github.com/hiddeco/sshsig"
	"golang.org/x/crypto/ssh"
)

// Signer is the signer of a commit or tag.
type Signer struct {
	// Name is the principals of an SSH key in the trusted keys, or the first user ID of an OpenPGP
	// key in alphabetical order.
	Name string `json:"name"`
	// Fingerprint is SHA256:… for an SSH key, or upper-case hex for an OpenPGP key.
	Fingerprint string `json:"fingerprint"`
}

func (s Signer) String() string { return s.Name + " (" + s.Fingerprint + ")" }

// trustedKeys are the keys for signatures. They do not change.
type trustedKeys struct {
	// digest is the digest of the files with the keys.
	digest string
	ssh    []sshKey
	pgp    openpgp.EntityList
	// pgpMu: the library caches checked revocations in the keys.
	pgpMu sync.Mutex
}

// sshKey is a line of an allowed_signers file.
type sshKey struct {
	principals    string
	namespaces    string // a pattern list; empty: all
	after, before time.Time
	key           ssh.PublicKey
}

// sshNamespace is the namespace of git's signatures. A signature of a file with the same bytes as a
// commit has another namespace, and does not count.
const sshNamespace = "git"

const (
	maxSmallFile = 1 << 20
	minRSABits   = 2048
)

// readTrusted reads all files of trusted keys.
func readTrusted(files []string) (*trustedKeys, error) {
	keys := &trustedKeys{}
	digest := sha256.New()
	for _, file := range files {
		data, err := readSmall(file)
		if err != nil {
			return nil, fmt.Errorf("read trusted keys: %w", err)
		}
		digest.Write(data)
		digest.Write([]byte{0})
		if err := keys.parse(data); err != nil {
			return nil, fmt.Errorf("trusted keys: %s:%w", file, err)
		}
	}
	if len(keys.ssh) == 0 && len(keys.pgp) == 0 {
		return nil, fmt.Errorf("trusted keys: %s holds none: give lines as ssh-keygen reads them in allowed_signers, or armored OpenPGP public keys",
			strings.Join(files, ", "))
	}
	keys.digest = hex.EncodeToString(digest.Sum(nil))
	return keys, nil
}

// readSmall reads a file of at most maxSmallFile bytes.
func readSmall(file string) (data []byte, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err //nolint:wrapcheck // it names the file
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	data, err = io.ReadAll(io.LimitReader(f, maxSmallFile+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	if int64(len(data)) > maxSmallFile {
		return nil, fmt.Errorf("%s is larger than %d KiB", file, maxSmallFile>>10)
	}
	return data, nil
}

// parse adds the keys of one file. Its errors start with the line's number.
func (t *trustedKeys) parse(data []byte) error {
	const begin, end = "-----BEGIN PGP PUBLIC KEY BLOCK-----", "-----END PGP PUBLIC KEY BLOCK-----"
	var block []byte // of OpenPGP
	number, from := 0, 0
	for raw := range bytes.Lines(data) {
		number++
		line := strings.TrimSpace(string(raw))
		switch {
		case block != nil || line == begin:
			if block == nil {
				from = number
			}
			block = append(block, line+"\n"...)
			if line != end {
				continue
			}
			if err := t.addPGP(block); err != nil {
				return fmt.Errorf("%d: this OpenPGP key can't be used: %w", from, err)
			}
			block = nil
		case line == "" || line[0] == '#':
		case strings.HasPrefix(line, "-----BEGIN"):
			return fmt.Errorf("%d: this is no public key: %.60s", number, line)
		default:
			key, err := parseSigner(line)
			if err != nil {
				return fmt.Errorf("%d: %w", number, err)
			}
			t.ssh = append(t.ssh, key)
		}
	}
	if block != nil {
		return fmt.Errorf("%d: this OpenPGP key has no end", from)
	}
	return nil
}

func (t *trustedKeys) addPGP(block []byte) error {
	entities, err := openpgp.ReadArmoredKeyRing(bytes.NewReader(block))
	if err != nil {
		return err //nolint:wrapcheck // the caller says of what
	}
	for _, e := range entities {
		if e.PrivateKey != nil {
			return errors.New("it is a private key")
		}
		if config := pgpConfig(time.Time{}); config.RejectPublicKeyAlgorithm(e.PrimaryKey.PubKeyAlgo) {
			return fmt.Errorf("%s: its algorithm is too weak (DSA, ElGamal)", pgpFingerprint(e))
		}
	}
	t.pgp = append(t.pgp, entities...)
	return nil
}

// parseSigner parses PRINCIPALS [OPTIONS] TYPE KEY [COMMENT], like ssh-keygen.
func parseSigner(line string) (sshKey, error) {
	var k sshKey
	principals, rest, err := cutWord(line)
	if err != nil {
		return k, err
	}
	if principals == "" {
		return k, errors.New("no principal precedes the key")
	}
	key, _, options, more, err := ssh.ParseAuthorizedKey([]byte(rest))
	if err != nil {
		if i := slices.IndexFunc(strings.Fields(rest), isKeyType); i >= 0 {
			return k, fmt.Errorf("keys of type %s are too weak, not known, or this one is damaged", strings.Fields(rest)[i])
		}
		return k, fmt.Errorf("behind the principal %q there is no public key that Keelson knows: write PRINCIPAL TYPE KEY", principals)
	}
	if len(more) > 0 {
		return k, errors.New("the line holds more than one key")
	}
	k.principals, k.key = principals, key
	if err := checkSSHKey(key); err != nil {
		return k, err
	}
	for _, option := range options {
		if err := k.option(option); err != nil {
			return k, err
		}
	}
	if !k.before.IsZero() && !k.after.Before(k.before) {
		return k, errors.New("valid-after is not before valid-before")
	}
	return k, nil
}

// cutWord splits the first word from a line; the word may be quoted.
func cutWord(line string) (word, rest string, err error) {
	if quoted, ok := strings.CutPrefix(line, `"`); ok {
		word, rest, ok = strings.Cut(quoted, `"`)
		if !ok {
			return "", "", errors.New("a quote is not closed")
		}
		return word, strings.TrimSpace(rest), nil
	}
	if i := strings.IndexAny(line, " \t"); i >= 0 {
		return line[:i], strings.TrimSpace(line[i:]), nil
	}
	return line, "", nil
}

func (k *sshKey) option(option string) error {
	name, value, _ := strings.Cut(option, "=")
	value = strings.Trim(value, `"`)
	var err error
	switch strings.ToLower(name) {
	case "namespaces":
		if value == "" {
			return errors.New("namespaces names none")
		}
		k.namespaces = value
	case "valid-after":
		k.after, err = parseSignerTime(value)
	case "valid-before":
		k.before, err = parseSignerTime(value)
	case "cert-authority":
		return errors.New("cert-authority is not supported: list the keys themselves")
	default:
		return fmt.Errorf("the option %q is not known", name)
	}
	return err
}

// parseSignerTime parses YYYYMMDD[HHMM[SS]][Z]. Without Z the time is in the local time zone.
func parseSignerTime(s string) (time.Time, error) {
	digits, utc := strings.CutSuffix(s, "Z")
	zone := time.Local
	if utc {
		zone = time.UTC
	}
	for _, layout := range []string{"20060102", "200601021504", "20060102150405"} {
		if t, err := time.ParseInLocation(layout, digits, zone); err == nil && len(digits) == len(layout) {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("%q is no time: write YYYYMMDD[HHMM[SS]][Z]", s)
}

// isKeyType reports whether a word looks like the type of an SSH key.
func isKeyType(word string) bool {
	return !strings.ContainsAny(word, "=\"") && (strings.HasPrefix(word, "ssh-") || strings.HasPrefix(word, "ecdsa-") || strings.HasPrefix(word, "sk-"))
}

// checkSSHKey refuses weak, unknown and unsupported keys.
func checkSSHKey(key ssh.PublicKey) error {
	if _, ok := key.(*ssh.Certificate); ok {
		return errors.New("certificates are not supported: list the key itself")
	}
	switch key.Type() {
	case ssh.KeyAlgoED25519, ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521,
		ssh.KeyAlgoSKED25519, ssh.KeyAlgoSKECDSA256:
		return nil
	case ssh.KeyAlgoRSA:
		c, ok := key.(ssh.CryptoPublicKey)
		if !ok {
			return errors.New("this RSA key can't be read")
		}
		public, ok := c.CryptoPublicKey().(*rsa.PublicKey)
		if !ok || public.N.BitLen() < minRSABits {
			return fmt.Errorf("an RSA key needs at least %d bits", minRSABits)
		}
		return nil
	default:
		return fmt.Errorf("keys of type %s are too weak or not known", key.Type())
	}
}

// valid returns why the key does not count for git at a time, or nil.
func (k *sshKey) valid(when time.Time) error {
	switch {
	case k.namespaces != "" && !matchList(k.namespaces, sshNamespace):
		return fmt.Errorf("its namespaces are %s, and not git", k.namespaces)
	case !k.after.IsZero() && when.Before(k.after):
		return fmt.Errorf("it was signed at %s, before the key became valid", when.Format(time.RFC3339))
	case !k.before.IsZero() && !when.Before(k.before):
		return fmt.Errorf("it was signed at %s, when the key was no longer valid", when.Format(time.RFC3339))
	}
	return nil
}

// matchList matches s against patterns with * and ?. A matching pattern with a leading ! overrides
// all other patterns.
func matchList(patterns, s string) bool {
	allowed := false
	for pattern := range strings.SplitSeq(patterns, ",") {
		pattern, not := strings.CutPrefix(strings.TrimSpace(pattern), "!")
		// Brackets and backslashes have no meaning in OpenSSH's patterns.
		if ok, err := path.Match(strings.NewReplacer("[", `\[`, `\`, `\\`).Replace(pattern), s); err != nil || !ok {
			continue
		}
		if not {
			return false
		}
		allowed = true
	}
	return allowed
}

// verify returns the signer of the payload. when is the time in the signed object. It decides about
// SSH keys, as in git, because their signatures hold no time.
func (t *trustedKeys) verify(payload, signature []byte, when time.Time) (Signer, error) {
	switch {
	case bytes.HasPrefix(signature, []byte(sshSignature)):
		return t.verifySSH(payload, signature, when)
	case bytes.HasPrefix(signature, []byte(pgpSignature)):
		return t.verifyPGP(payload, signature)
	default:
		return Signer{}, errors.New("its signature is neither of SSH nor of OpenPGP")
	}
}

func (t *trustedKeys) verifySSH(payload, signature []byte, when time.Time) (Signer, error) {
	sig, err := parseSSHSignature(signature)
	if err != nil {
		return Signer{}, fmt.Errorf("its SSH signature can't be read: %w", err)
	}
	fingerprint := ssh.FingerprintSHA256(sig.PublicKey)
	if sig.Namespace != sshNamespace {
		return Signer{}, fmt.Errorf("key %s signed it for %q, and not for git", fingerprint, sig.Namespace)
	}
	if hash := sig.HashAlgorithm; hash != sshsig.HashSHA256 && hash != sshsig.HashSHA512 {
		return Signer{}, fmt.Errorf("key %s signed it with the hash %q, which is not known", fingerprint, hash)
	}
	wire := sig.PublicKey.Marshal()
	err = errors.New("the key is not among the trusted keys")
	for i := range t.ssh {
		k := &t.ssh[i]
		if !bytes.Equal(k.key.Marshal(), wire) {
			continue
		}
		if err = k.valid(when); err != nil {
			continue
		}
		if sshsig.Verify(bytes.NewReader(payload), sig, k.key, sig.HashAlgorithm, sshNamespace) != nil {
			return Signer{}, fmt.Errorf("the signature of key %s is not one of these bytes", fingerprint)
		}
		return Signer{Name: k.principals, Fingerprint: fingerprint}, nil
	}
	return Signer{}, fmt.Errorf("signed by key %s: %w", fingerprint, err)
}

// parseSSHSignature parses an armored signature strictly. Extra data is refused, because it would
// change a commit without breaking its signature. Line breaks in the base64 text are not checked.
func parseSSHSignature(armored []byte) (*sshsig.Signature, error) {
	body, ok := strings.CutPrefix(string(armored), sshSignature+"\n")
	if !ok {
		return nil, errors.New("it does not begin as one")
	}
	body, after, ok := strings.Cut(body, "\n-----END SSH SIGNATURE-----")
	if !ok || after != "" && after != "\n" {
		return nil, errors.New("it does not end as one")
	}
	wire, err := base64.StdEncoding.Strict().DecodeString(strings.ReplaceAll(body, "\n", ""))
	if err != nil {
		return nil, fmt.Errorf("it is not base64: %w", err)
	}
	sig, err := sshsig.ParseSignature(wire)
	if err != nil {
		return nil, err //nolint:wrapcheck // the caller says of what
	}
	if !bytes.Equal(sig.Marshal(), wire) {
		return nil, errors.New("it holds more than a signature")
	}
	return sig, nil
}

// pgpConfig checks keys at the time of a signature.
func pgpConfig(at time.Time) *packet.Config {
	return &packet.Config{
		Time:       func() time.Time { return at },
		MinRSABits: minRSABits,
	}
}

func (t *trustedKeys) verifyPGP(payload, armored []byte) (Signer, error) {
	raw, sig, err := parsePGPSignature(armored)
	if err != nil {
		return Signer{}, fmt.Errorf("its OpenPGP signature can't be read: %w", err)
	}
	fingerprint := "unknown"
	switch {
	case len(sig.IssuerFingerprint) > 0:
		fingerprint = fmt.Sprintf("%X", sig.IssuerFingerprint)
	case sig.IssuerKeyId != nil:
		fingerprint = fmt.Sprintf("%016X", *sig.IssuerKeyId)
	}
	t.pgpMu.Lock()
	defer t.pgpMu.Unlock()
	_, entity, err := openpgp.VerifyDetachedSignature(t.pgp, bytes.NewReader(payload), bytes.NewReader(raw), pgpConfig(sig.CreationTime))
	switch {
	case errors.Is(err, pgperrors.ErrUnknownIssuer):
		return Signer{}, fmt.Errorf("signed by key %s: the key is not among the trusted keys", fingerprint)
	case errors.Is(err, pgperrors.ErrKeyExpired):
		return Signer{}, fmt.Errorf("signed by key %s at %s, when the key was expired", fingerprint, sig.CreationTime.UTC().Format(time.RFC3339))
	case errors.Is(err, pgperrors.ErrKeyRevoked):
		return Signer{}, fmt.Errorf("signed by key %s: the key is revoked", fingerprint)
	case err != nil:
		return Signer{}, fmt.Errorf("the signature of key %s does not hold: %w", fingerprint, err)
	}
	return Signer{Name: pgpName(entity), Fingerprint: pgpFingerprint(entity)}, nil
}

// parsePGPSignature parses an armored signature: one packet, without expiry, over bytes. A
// signature over text would also hold for other line ends.
func parsePGPSignature(armored []byte) (raw []byte, sig *packet.Signature, err error) {
	if bytes.Count(armored, []byte("-----BEGIN")) != 1 {
		return nil, nil, errors.New("it holds more than one")
	}
	if !bytes.HasSuffix(bytes.TrimRight(armored, "\n"), []byte("-----END PGP SIGNATURE-----")) {
		return nil, nil, errors.New("it does not end as one")
	}
	block, err := armor.Decode(bytes.NewReader(armored))
	if err != nil {
		return nil, nil, err //nolint:wrapcheck // the caller says of what
	}
	if raw, err = io.ReadAll(block.Body); err != nil {
		return nil, nil, err //nolint:wrapcheck // as above
	}
	packets := packet.NewReader(bytes.NewReader(raw))
	first, err := packets.Next()
	if err != nil {
		return nil, nil, err //nolint:wrapcheck // as above
	}
	sig, ok := first.(*packet.Signature)
	if !ok {
		return nil, nil, errors.New("it is no signature")
	}
	if _, err := packets.Next(); !errors.Is(err, io.EOF) {
		return nil, nil, errors.New("it holds more than one")
	}
	if sig.SigType != packet.SigTypeBinary {
		return nil, nil, errors.New("it is not over bytes")
	}
	if sig.SigLifetimeSecs != nil && *sig.SigLifetimeSecs != 0 {
		return nil, nil, errors.New("it expires, and what runs must not depend on the date: sign without an expiry")
	}
	return raw, sig, nil
}

func pgpFingerprint(e *openpgp.Entity) string { return fmt.Sprintf("%X", e.PrimaryKey.Fingerprint) }

// pgpName returns the first user ID of a key in alphabetical order, because the library keeps them
// in a map.
func pgpName(e *openpgp.Entity) string {
	names := make([]string, 0, len(e.Identities))
	for name := range e.Identities {
		names = append(names, name)
	}
	if len(names) == 0 {
		return "a key without a name"
	}
	return slices.Min(names)
}
