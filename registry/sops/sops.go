// Package sops reads YAML files that SOPS encrypted for age keys.
//
// It reads the format that github.com/getsops/sops documents. Every value is encrypted separately
// and bound to its path. The key of the values is encrypted for each recipient. A MAC over all
// values binds the file together. decisions/012 says why Keelson does not use that module; the
// tests compare both.
//
// No error of this package contains a value or a key.
package sops

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"filippo.io/age"
	"go.yaml.in/yaml/v3" // the parser of SOPS, because the MAC is over its results
)

// Key is the top-level key of the metadata of SOPS in a file.
const Key = "sops"

const (
	prefix        = "ENC[AES256_GCM,"
	commentSuffix = ",type:comment]"
	// defaultSuffix is the suffix of keys that stay in clear text, if the file sets no other rule.
	defaultSuffix = "_unencrypted"
)

// IsEncrypted reports whether SOPS encrypted a value. Such strings are not written by hand.
func IsEncrypted(value any) bool {
	s, ok := value.(string)
	return ok && strings.HasPrefix(s, prefix)
}

// IsComment reports whether a list item is an encrypted comment. SOPS has no other place for these
// comments.
func IsComment(item any) bool {
	s, ok := item.(string)
	return ok && IsEncrypted(s) && strings.HasSuffix(s, commentSuffix)
}

// Error says why a file can't be read or decrypted.
type Error struct {
	// Line and Column count from 1; 0: the whole file.
	Line, Column  int
	Message, Hint string
	// NoKey is set if none of the keys is for the file, and the file itself is valid.
	NoKey bool
}

// Error returns "LINE:COLUMN: message (hint)".
func (e *Error) Error() string {
	s := e.Message
	if e.Line > 0 {
		s = fmt.Sprintf("%d:%d: %s", e.Line, e.Column, s)
	}
	if e.Hint != "" {
		s += " (" + e.Hint + ")"
	}
	return s
}

// File is a parsed file, still encrypted. It is immutable.
type File struct {
	recipients []recipient
	rule       rule
	macOnly    bool // the MAC is over the encrypted values only
	mac        string
	modified   string // the time that the MAC is bound to
	leaves     []leaf
}

// recipient is an age public key, with the data key encrypted for it.
type recipient struct{ name, enc string }

// leaf is one value of a file, in the order of the MAC.
type leaf struct {
	// path has the indexes of list items, which skip encrypted comments.
	path []string
	// bound is the path that the value is bound to: without indexes.
	bound        string
	line, column int
	// value is the value as SOPS reads it: string, int, float64, bool or time.Time.
	value     any
	encrypted bool
}

// Recipients returns the age public keys that the file is encrypted for.
func (f *File) Recipients() []string {
	var out []string
	for _, r := range f.recipients {
		out = append(out, r.name)
	}
	return out
}

// Parse parses a file. Its errors are of type *[Error].
func Parse(data []byte) (*File, error) {
	root, err := parseYAML(data)
	if err != nil {
		return nil, err
	}
	var p parser
	if err := p.metadata(root); err != nil {
		return nil, err
	}
	for i := 0; i+1 < len(root.Content); i += 2 {
		if root.Content[i].Value == Key {
			root.Content = slices.Delete(slices.Clone(root.Content), i, i+2)
			break
		}
	}
	if err := p.walk(root, place{}); err != nil {
		return nil, err
	}
	return &p.file, nil
}

func parseYAML(data []byte) (*yaml.Node, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var doc, second yaml.Node
	if err := decoder.Decode(&doc); err != nil {
		return nil, &Error{Message: "not valid YAML"} // the error of the parser may quote values
	}
	if err := decoder.Decode(&second); !errors.Is(err, io.EOF) {
		return nil, &Error{Message: "the file holds more than one YAML document"}
	}
	if doc.Kind != yaml.DocumentNode || len(doc.Content) != 1 || doc.Content[0].Kind != yaml.MappingNode {
		return nil, &Error{Message: "the file must hold a mapping"}
	}
	return doc.Content[0], nil
}

// metadata is the metadata of SOPS below its key.
type metadata struct {
	Age       []ageKey    `yaml:"age"`
	KMS       []yaml.Node `yaml:"kms"`
	GCPKMS    []yaml.Node `yaml:"gcp_kms"`
	HuaweiKMS []yaml.Node `yaml:"hckms"`
	AzureKV   []yaml.Node `yaml:"azure_kv"`
	Vault     []yaml.Node `yaml:"hc_vault"`
	PGP       []yaml.Node `yaml:"pgp"`
	KeyGroups []yaml.Node `yaml:"key_groups"`

	LastModified     string `yaml:"lastmodified"`
	MAC              string `yaml:"mac"`
	MACOnlyEncrypted bool   `yaml:"mac_only_encrypted"`

	UnencryptedSuffix       string `yaml:"unencrypted_suffix"`
	EncryptedSuffix         string `yaml:"encrypted_suffix"`
	UnencryptedRegex        string `yaml:"unencrypted_regex"`
	EncryptedRegex          string `yaml:"encrypted_regex"`
	UnencryptedCommentRegex string `yaml:"unencrypted_comment_regex"`
	EncryptedCommentRegex   string `yaml:"encrypted_comment_regex"`
}

type ageKey struct {
	Recipient string `yaml:"recipient"`
	Enc       string `yaml:"enc"`
}

// isNative reports whether a recipient is an age key, not an SSH key or a plugin.
func isNative(recipient string) bool {
	_, err := age.ParseX25519Recipient(recipient)
	if err != nil {
		_, err = age.ParseHybridRecipient(recipient)
	}
	return err == nil
}

// services returns the other key services that the data key is encrypted for.
func (m *metadata) services() []string {
	var out []string
	for _, s := range []struct {
		name string
		keys []yaml.Node
	}{
		{"AWS KMS", m.KMS},
		{"GCP KMS", m.GCPKMS},
		{"Huawei Cloud KMS", m.HuaweiKMS},
		{"Azure Key Vault", m.AzureKV},
		{"HashiCorp Vault", m.Vault},
		{"PGP", m.PGP},
	} {
		if len(s.keys) > 0 {
			out = append(out, s.name)
		}
	}
	return out
}

// parser builds a File.
type parser struct{ file File }

func (p *parser) metadata(root *yaml.Node) error {
	var key, node *yaml.Node
	for i := 0; i+1 < len(root.Content); i += 2 {
		if root.Content[i].Value == Key {
			key, node = root.Content[i], root.Content[i+1]
		}
	}
	if node == nil {
		return &Error{Message: "SOPS did not encrypt this file: there is no " + Key + ": at its top"}
	}
	fail := func(message, hint string) error { return failAt(key, message, hint) }
	var m metadata
	if err := node.Decode(&m); err != nil || node.Kind != yaml.MappingNode {
		return fail("what stands below "+Key+": is not as SOPS writes it", "encrypt the file anew")
	}
	modified, err := time.Parse(time.RFC3339, m.LastModified)
	switch {
	case len(m.KeyGroups) > 0:
		return fail("the key is split between key groups; Keelson decrypts files for age recipients in one group", "")
	case len(m.Age) == 0 && len(m.services()) == 0:
		return fail("the file names no key", "encrypt it with: sops encrypt --in-place --age age1… FILE")
	case len(m.Age) == 0:
		return fail("the file is encrypted for "+strings.Join(m.services(), " and ")+" only; Keelson decrypts age",
			"add a recipient with: sops rotate --in-place --add-age age1… FILE")
	case len(m.Age) > 0 && !slices.ContainsFunc(m.Age, func(a ageKey) bool { return isNative(a.Recipient) }):
		return fail("the file is encrypted for SSH keys or plugins of age only; Keelson decrypts for age keys (age1…)",
			"add a recipient with: sops rotate --in-place --add-age age1… FILE")
	case m.MAC == "":
		return fail("the MAC is missing, so a change of the file can't be detected", "encrypt the file anew")
	case err != nil:
		return fail("lastmodified is no time", "encrypt the file anew")
	}
	for _, a := range m.Age {
		p.file.recipients = append(p.file.recipients, recipient{name: a.Recipient, enc: a.Enc})
	}
	p.file.mac, p.file.macOnly = m.MAC, m.MACOnlyEncrypted
	p.file.modified = modified.Format(time.RFC3339)
	if p.file.rule, err = newRule(m); err != nil {
		return fail(err.Error(), "")
	}
	return nil
}

func failAt(n *yaml.Node, message, hint string) error {
	return &Error{Line: n.Line, Column: n.Column, Message: message, Hint: hint}
}

// rule determines which values of a file are encrypted.
type rule struct {
	suffix string
	regex  *regexp.Regexp // nil: by suffix
	clear  bool           // matching keys are in clear text, not encrypted
	// asMarked: comments decide, so values that look encrypted are.
	asMarked bool
}

func newRule(m metadata) (rule, error) {
	var (
		out   = rule{suffix: defaultSuffix, clear: true}
		given []string
	)
	for _, r := range []struct {
		key, value string
		rule       rule
	}{
		{"unencrypted_suffix", m.UnencryptedSuffix, rule{suffix: m.UnencryptedSuffix, clear: true}},
		{"encrypted_suffix", m.EncryptedSuffix, rule{suffix: m.EncryptedSuffix}},
		{"unencrypted_regex", m.UnencryptedRegex, rule{clear: true}},
		{"encrypted_regex", m.EncryptedRegex, rule{}},
		{"unencrypted_comment_regex", m.UnencryptedCommentRegex, rule{asMarked: true}},
		{"encrypted_comment_regex", m.EncryptedCommentRegex, rule{asMarked: true}},
	} {
		if r.value == "" {
			continue
		}
		given = append(given, r.key)
		out = r.rule
		if out.suffix == "" && !out.asMarked {
			var err error
			if out.regex, err = regexp.Compile(r.value); err != nil {
				return rule{}, fmt.Errorf("%s is no regular expression: %w", r.key, err)
			}
		}
	}
	if len(given) > 1 {
		return rule{}, errors.New(strings.Join(given, " and ") + " contradict each other")
	}
	return out, nil
}

// encrypts reports whether a value below the keys is encrypted.
func (r rule) encrypts(keys []string, value any) bool {
	if r.asMarked {
		return IsEncrypted(value)
	}
	matches := slices.ContainsFunc(keys, func(key string) bool {
		if r.regex != nil {
			return r.regex.MatchString(key)
		}
		return strings.HasSuffix(key, r.suffix)
	})
	return matches != r.clear
}

// place is the current position of a walk.
type place struct{ path, keys []string }

func (p place) key(key string) place {
	return place{path: append(slices.Clip(p.path), key), keys: append(slices.Clip(p.keys), key)}
}

func (p place) item(i int) place {
	return place{path: append(slices.Clip(p.path), strconv.Itoa(i)), keys: p.keys}
}

// walk collects the leaves.
func (p *parser) walk(n *yaml.Node, at place) error {
	if n.Anchor != "" || n.Kind == yaml.AliasNode {
		return failAt(n, "YAML anchors and aliases are not supported", "")
	}
	switch n.Kind {
	case yaml.MappingNode:
		return p.mapping(n, at)
	case yaml.SequenceNode:
		i := 0
		for _, item := range n.Content {
			if item.Kind == yaml.ScalarNode && IsComment(item.Value) {
				continue // a comment has no binding, and is not in the MAC
			}
			if err := p.walk(item, at.item(i)); err != nil {
				return err
			}
			i++
		}
		return nil
	case yaml.ScalarNode:
		return p.scalar(n, at)
	default:
		return failAt(n, "this YAML is not supported", "")
	}
}

func (p *parser) mapping(n *yaml.Node, at place) error {
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		if key.Kind != yaml.ScalarNode || key.Anchor != "" || key.ShortTag() != "!!str" {
			return failAt(key, "a key must be a string", "quote it")
		}
		if seen[key.Value] {
			return failAt(key, "a key stands twice", "")
		}
		seen[key.Value] = true
		if err := p.walk(n.Content[i+1], at.key(key.Value)); err != nil {
			return err
		}
	}
	return nil
}

func (p *parser) scalar(n *yaml.Node, at place) error {
	var value any
	if err := n.Decode(&value); err != nil {
		return failAt(n, "a value can't be read", "")
	}
	switch value.(type) {
	case nil:
		return nil // neither encrypted nor in the MAC
	case string, int, float64, bool, time.Time:
	default:
		return failAt(n, fmt.Sprintf("SOPS has no form for a value of type %T", value), "quote it")
	}
	l := leaf{
		path: at.path, bound: strings.Join(at.keys, ":") + ":", line: n.Line, column: n.Column,
		value: value, encrypted: p.file.rule.encrypts(at.keys, value),
	}
	switch {
	case l.encrypted && value != "" && !IsEncrypted(value):
		return failAt(n, "a value that must be encrypted is in clear text", "put the encrypted value back, and change it with: sops edit FILE")
	case !l.encrypted && IsEncrypted(value):
		return failAt(n, "a value is encrypted, but the file's own rules below keep it in clear text "+Key+":", "encrypt the file anew")
	}
	p.file.leaves = append(p.file.leaves, l)
	return nil
}
