package sops

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"filippo.io/age"
	"filippo.io/age/armor"
)

const (
	dataKeyBytes = 32
	ivBytes      = 32
)

// macOnlyEncrypted starts the MAC of a file with mac_only_encrypted, so that this MAC differs from
// the MAC over all values. It is the SHA-256 of "sops".
const macOnlyEncrypted = "\x8a\x3f\xd2\xad\x54\xce\x66\x52\x7b\x10\x34\xf3\xd1\x47\xbe\x0b" +
	"\x0b\x97\x5b\x3b\xf4\x4f\x72\xc6\xfd\xad\xec\x81\x76\xf2\x7d\x69"

// Leaf is a decrypted value.
type Leaf struct {
	// Path is the path from the top of the file. List items are named by their index, which skips
	// encrypted comments.
	Path []string
	// Line and Column count from 1.
	Line, Column int
	// Value is a string, float64 or bool, as Helm reads the output of SOPS.
	Value any
}

// Opened is the decrypted content of a file.
type Opened struct {
	// Leaves are the encrypted values, in the order of the file.
	Leaves []Leaf
	// Salt is as secret as the values. It is the same while the file keeps its data key (until sops
	// rotate). Hashes of secrets are keyed with it, so that a weak password can't be found by
	// trying.
	Salt [sha256.Size]byte
}

// Decrypt decrypts the file if the MAC matches all its values. Its errors are of type *[Error].
func (f *File) Decrypt(identities []age.Identity) (*Opened, error) {
	key, err := f.dataKey(identities)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, &Error{Message: "the data key is of a wrong size"}
	}
	c, err := cipher.NewGCMWithNonceSize(block, ivBytes)
	if err != nil {
		return nil, &Error{Message: "the data key can't be used"}
	}
	out := &Opened{Salt: sha256.Sum256(append([]byte("keelson salt "), key...))}
	mac := sha512.New()
	if f.macOnly {
		io.WriteString(mac, macOnlyEncrypted) //nolint:errcheck // a hash takes everything
	}
	for _, l := range f.leaves {
		if !l.encrypted && f.macOnly {
			continue
		}
		leaf, text, err := l.open(c)
		if err != nil {
			return nil, err
		}
		mac.Write(text)
		if l.encrypted {
			out.Leaves = append(out.Leaves, leaf)
		}
	}
	want, err := open(c, f.mac, f.modified)
	text, ok := want.(string)
	if err != nil || !ok || subtle.ConstantTimeCompare([]byte(text), fmt.Appendf(nil, "%X", mac.Sum(nil))) != 1 {
		return nil, &Error{
			Message: "the file was changed after it was encrypted: its MAC does not match",
			Hint: "undo that and make the change with: sops edit FILE, or accept it with: sops edit --ignore-mac FILE; " +
				"with mac_only_encrypted: true in .sops.yaml, what is not encrypted may be changed by hand",
		}
	}
	return out, nil
}

// open returns a leaf's value, and its form in the MAC.
func (l leaf) open(c cipher.AEAD) (Leaf, []byte, error) {
	fail := func(message, hint string) error {
		return &Error{Line: l.line, Column: l.column, Message: message, Hint: hint}
	}
	value := l.value
	if l.encrypted {
		var err error
		if value, err = open(c, l.value, l.bound); err != nil {
			return Leaf{}, nil, fail("this value can't be decrypted: "+err.Error(), "it was changed or moved after it was encrypted")
		}
	}
	text, err := macText(value)
	if err != nil {
		return Leaf{}, nil, fail(err.Error(), "")
	}
	plain, err := asHelmReads(value)
	if err != nil && l.encrypted {
		return Leaf{}, nil, fail(err.Error(), "")
	}
	return Leaf{Path: l.path, Line: l.line, Column: l.column, Value: plain}, text, nil
}

// dataKey decrypts the data key.
func (f *File) dataKey(identities []age.Identity) ([]byte, error) {
	broken := false
	for _, r := range f.recipients {
		if len(identities) == 0 {
			break
		}
		plain, err := age.Decrypt(armor.NewReader(strings.NewReader(r.enc)), identities...)
		if err != nil {
			broken = broken || !errors.As(err, new(*age.NoIdentityMatchError))
			continue
		}
		key, err := io.ReadAll(io.LimitReader(plain, dataKeyBytes+1))
		if err == nil && len(key) == dataKeyBytes {
			return key, nil
		}
		broken = true
	}
	if broken {
		return nil, &Error{Message: "what is encrypted with age below " + Key + ": is broken", Hint: "encrypt the file anew"}
	}
	return nil, &Error{NoKey: true, Message: "there is no key for it: it is encrypted for " + strings.Join(f.Recipients(), ", ")}
}

// open decrypts one value that is bound to a position. The errors of the cipher are not wrapped,
// because they say only that it failed.
func open(c cipher.AEAD, value any, bound string) (any, error) {
	text, ok := value.(string)
	switch {
	case !ok:
		return nil, errors.New("it is no string")
	case text == "":
		return "", nil // SOPS does not encrypt empty strings
	}
	e, ok := encryptedValue(text)
	if !ok || len(e.iv) != ivBytes || len(e.tag) != aes.BlockSize {
		return nil, errors.New("it is not as SOPS writes it")
	}
	plain, err := c.Open(nil, e.iv, append(e.data, e.tag...), []byte(bound))
	if err != nil {
		return nil, errors.New("it is not authentic")
	}
	return typed(plain, e.kind)
}

// encrypted is ENC[AES256_GCM,data:…,iv:…,tag:…,type:…].
type encrypted struct {
	data, iv, tag []byte
	kind          string
}

func encryptedValue(text string) (encrypted, bool) {
	inner, ok := strings.CutPrefix(text, prefix)
	inner, closed := strings.CutSuffix(inner, "]")
	fields := strings.Split(inner, ",")
	names := []string{"data:", "iv:", "tag:", "type:"}
	if !ok || !closed || len(fields) != len(names) {
		return encrypted{}, false
	}
	var e encrypted
	for i, into := range []*[]byte{&e.data, &e.iv, &e.tag} {
		encoded, ok := strings.CutPrefix(fields[i], names[i])
		raw, err := base64.StdEncoding.Strict().DecodeString(encoded)
		if !ok || err != nil {
			return encrypted{}, false
		}
		*into = raw
	}
	e.kind, ok = strings.CutPrefix(fields[3], names[3])
	return e, ok
}

// typed converts decrypted text to its original type.
func typed(plain []byte, kind string) (any, error) {
	var (
		value any
		err   error
	)
	switch text := string(plain); kind {
	case "str", "bytes":
		value = text
		if !utf8.Valid(plain) {
			err = errors.New("not UTF-8")
		}
	case "int":
		value, err = strconv.Atoi(text)
	case "float":
		value, err = strconv.ParseFloat(text, 64)
	case "bool":
		value, err = strconv.ParseBool(text)
	case "time":
		var t time.Time
		err = t.UnmarshalText(plain)
		value = t
	default:
		return nil, errors.New("its type is unknown")
	}
	if err != nil {
		return nil, errors.New("it is no " + kind) // without the cause, which quotes the value
	}
	return value, nil
}

// macText returns the form of a value in the MAC.
func macText(value any) ([]byte, error) {
	switch v := value.(type) {
	case string:
		return []byte(v), nil
	case int:
		return strconv.AppendInt(nil, int64(v), 10), nil
	case float64:
		return strconv.AppendFloat(nil, v, 'f', -1, 64), nil
	case bool:
		if v {
			return []byte("True"), nil
		}
		return []byte("False"), nil
	case time.Time:
		text, err := v.MarshalText()
		if err != nil {
			return nil, errors.New("this is no time")
		}
		return text, nil
	default:
		return nil, fmt.Errorf("SOPS has no form for a value of type %T", value)
	}
}

// asHelmReads returns the value that Helm reads from the output of SOPS.
func asHelmReads(value any) (any, error) {
	switch v := value.(type) {
	case int:
		return float64(v), nil
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return nil, errors.New("this number has no form in JSON")
		}
		return v, nil
	case time.Time:
		return v.Format(time.RFC3339Nano), nil
	default:
		return v, nil
	}
}
