package sops_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"filippo.io/age"
	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/keelson-io/keelson/registry/sops"
)

// TestFiles decrypts what sops 3.13 encrypted (testdata/NAME.yaml) and compares
// with what it decrypts itself (testdata/NAME.plain.yaml), read as Helm does.
func TestFiles(t *testing.T) {
	t.Parallel()
	plain, err := filepath.Glob("testdata/*.plain.yaml")
	if err != nil || len(plain) < 11 {
		t.Fatalf("%d files, %v; want at least 11", len(plain), err)
	}
	ids := identities(t, "keys.txt", "pq-keys.txt")
	for _, name := range plain {
		t.Run(filepath.Base(name), func(t *testing.T) {
			t.Parallel()
			got := decrypted(t, read(t, strings.Replace(name, ".plain", "", 1)), ids)
			var want map[string]any
			if err := yaml.Unmarshal(read(t, name), &want); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("decrypted (-sops +keelson):\n%s", diff)
			}
		})
	}
}

// TestTampered changes an encrypted file as an attacker without the key could.
func TestTampered(t *testing.T) {
	t.Parallel()
	const (
		changed = "MAC does not match"
		broken  = "can't be decrypted"
	)
	cases := map[string]struct {
		why      string
		file     string
		old, new string // the first match of a regular expression, and what replaces it
		want     string
		wantLine bool
	}{
		"ValuesSwapped": {
			why:  "A value is bound to its key: a password can't be put where it is shown.",
			file: "encrypted-regex.yaml", old: `(?s)password: (ENC\S+)(.*?)token: (ENC\S+)`, new: "password: $3${2}token: $1",
			want: broken, wantLine: true,
		},
		"ItemsSwapped": {
			why:  "Items of a list have one path; their order is in the MAC.",
			file: "whole.yaml", old: `(?s)- (ENC\S+type:str\])(\n\s+)- (ENC\S+type:int\])`, new: "- $3${2}- $1",
			want: changed,
		},
		"EncryptedKeyRemoved": {
			why:  "Without its password a service may be open.",
			file: "encrypted-regex.yaml", old: `    password: .*\n`, new: "",
			want: changed,
		},
		"ClearKeyRemoved": {
			why:  "What is clear is in the MAC as well.",
			file: "encrypted-regex.yaml", old: `    replicas: 3\n`, new: "",
			want: changed,
		},
		"ClearValueChanged": {
			why:  "A version is chosen together with its secrets.",
			file: "encrypted-regex.yaml", old: `version: v1.0.0`, new: "version: v1.0.1",
			want: changed,
		},
		"ClearValueAdded": {
			file: "encrypted-regex.yaml", old: `    replicas: 3\n`, new: "    replicas: 3\n    more: 4\n",
			want: changed,
		},
		"MACCut": {
			why:  "Not knowing whether a file was changed is not knowing that it was not.",
			file: "encrypted-regex.yaml", old: `    mac: .*\n`, new: "",
			want: "the MAC is missing", wantLine: true,
		},
		"MACEmpty": {
			file: "encrypted-regex.yaml", old: `    mac: .*\n`, new: "    mac: \"\"\n",
			want: "the MAC is missing", wantLine: true,
		},
		"MACOfAnotherTime": {
			why:  "The MAC is bound to its time, so that an older one can't be put back.",
			file: "encrypted-regex.yaml", old: `lastmodified: "2026`, new: `lastmodified: "2025`,
			want: changed,
		},
		"MACMadeNarrower": {
			why:  "Otherwise the clear values could be changed after all.",
			file: "encrypted-regex.yaml", old: `    mac: `, new: "    mac_only_encrypted: true\n    mac: ",
			want: changed,
		},
		"EncryptedByClear": {
			why:  "A clear value at a path that must be encrypted may come from a person without the key.",
			file: "encrypted-regex.yaml", old: `password: ENC\S+`, new: "password: known-to-me",
			want: "is in clear text", wantLine: true,
		},
		"EncryptedByNothing": {
			why:  "SOPS leaves empty values as they are, so only the MAC tells.",
			file: "mac-only.yaml", old: `password: ENC\S+`, new: `password: ""`,
			want: changed,
		},
		"RuleChanged": {
			why:  "A chart must never get the encrypted text for the value.",
			file: "encrypted-regex.yaml", old: `encrypted_regex: .*`, new: `encrypted_regex: ^token$`,
			want: "keep it in clear text", wantLine: true,
		},
		"TurnedIntoAComment": {
			why:  "The type is bound to nothing; an item that is left out is missed in the MAC.",
			file: "whole.yaml", old: `(- ENC\S+),type:str\]`, new: "$1,type:comment]",
			want: changed,
		},
		"OtherType": {
			file: "whole.yaml", old: `(password: ENC\S+),type:str\]`, new: "$1,type:int]",
			want: broken, wantLine: true,
		},
		"MoreBehindTheValue": {
			why:  "SOPS itself overlooks it.",
			file: "whole.yaml", old: `(password: ENC\S+,type:str\])`, new: "${1}x",
			want: broken, wantLine: true,
		},
		"OtherRecipient": {
			why:  "The recipient in the file is not checked. Only the key decides whether the file can be decrypted.",
			file: "encrypted-regex.yaml", old: `recipient: age1\S+`, new: "recipient: age1s7r2qc95a8qg02jexrk8qymxuuh4wf2j2vs5vg7mczufepms0yhqvyjzy5",
			want: "",
		},
		"DataKeyCut": {
			file: "encrypted-regex.yaml", old: `(?s)-----BEGIN AGE.*?\n.*?\n`, new: "-----BEGIN AGE ENCRYPTED FILE-----\n",
			want: "is broken",
		},
	}
	ids := identities(t, "keys.txt")
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data := string(read(t, filepath.Join("testdata", tc.file)))
			re := regexp.MustCompile(tc.old)
			at := re.FindStringSubmatchIndex(data)
			if at == nil {
				t.Fatalf("nothing matches %s", tc.old)
			}
			data = data[:at[0]] + string(re.ExpandString(nil, tc.new, data, at)) + data[at[1]:]
			_, err := open([]byte(data), ids)
			var failed *sops.Error
			switch {
			case tc.want == "":
				if err != nil {
					t.Errorf("%v; want no error", err)
				}
				return
			case !errors.As(err, &failed) || !strings.Contains(err.Error(), tc.want):
				t.Fatalf("error %v; want %q\n%s", err, tc.want, tc.why)
			case failed.NoKey:
				t.Errorf("%v: it is taken for a missing key", err)
			case tc.wantLine != (failed.Line > 0), tc.wantLine != (failed.Column > 0),
				tc.wantLine && !strings.HasPrefix(failed.Error(), fmt.Sprintf("%d:%d: ", failed.Line, failed.Column)):
				t.Errorf("error at %d:%d of %q", failed.Line, failed.Column, failed)
			}
		})
	}
}

// TestEveryByte changes each byte of each encrypted value, of the MAC and of
// what the MAC is over.
func TestEveryByte(t *testing.T) {
	t.Parallel()
	ids := identities(t, "keys.txt")
	data := read(t, "testdata/encrypted-regex.yaml")
	want := encryptedOf(t, data, ids)
	spans := regexp.MustCompile(`ENC\[[^\]]+\]|version: v1\.0\.0|replicas: 3|hunter2`).FindAllIndex(data, -1)
	tried := 0
	for _, span := range spans {
		for at := span[0]; at < span[1]; at++ {
			for _, bit := range []byte{0x01, 0x04, 0x20} {
				changed := slices.Clone(data)
				changed[at] ^= bit
				leaves, err := open(changed, ids)
				tried++
				if err != nil {
					continue
				}
				// A byte of a comment is bound to nothing.
				for _, l := range leaves {
					if want[strings.Join(l.Path, "/")] != l.Value {
						t.Fatalf("byte %d changed by %#x: %v is %v", at, bit, l.Path, l.Value)
					}
				}
				if !bytes.Contains(data[max(0, span[0]-2):span[1]], []byte("type:comment")) && len(leaves) != len(want) {
					t.Fatalf("byte %d changed by %#x: %d values, want %d", at, bit, len(leaves), len(want))
				}
			}
		}
	}
	if tried < 2000 {
		t.Errorf("%d changes, want at least 2000", tried)
	}
}

// TestRefused are files that no key can help.
func TestRefused(t *testing.T) {
	t.Parallel()
	const head = "values: {a: 1}\nsops:\n  lastmodified: \"2026-11-05T00:00:00Z\"\n  mac: ENC[x]\n"
	const recipient = "  age: [{recipient: age1y855u7huhvzqpzsf8nlj0mn8nqmr5nsz6uhjwq47jh9z9z3jge6sknkn9n, enc: x}]\n"
	cases := map[string]struct{ data, want string }{
		"NotEncrypted":  {"values: {}\n", "SOPS did not encrypt this file"},
		"NotAMapping":   {"- sops: {}\n", "must hold a mapping"},
		"NotYAML":       {"a: [\n", "not valid YAML"},
		"TwoDocuments":  {head + recipient + "---\na: 1\n", "more than one YAML document"},
		"NoMetadata":    {"sops: 1\n", "not as SOPS writes it"},
		"NoKey":         {head, "names no key"},
		"KMS":           {head + "  kms: [{arn: 'arn:aws:kms:x'}]\n", "encrypted for AWS KMS only; Keelson decrypts age"},
		"VaultAndPGP":   {head + "  hc_vault: [{}]\n  pgp: [{fp: x}]\n", "encrypted for HashiCorp Vault and PGP only"},
		"SSH":           {head + "  age: [{recipient: ssh-ed25519 AAAA, enc: x}]\n", "for SSH keys or plugins of age only"},
		"Plugin":        {head + "  age: [{recipient: age1yubikey1qwert, enc: x}]\n", "for SSH keys or plugins of age only"},
		"KeyGroups":     {head + "  key_groups: [{age: []}]\n", "split between key groups"},
		"TwoRules":      {head + recipient + "  encrypted_regex: a\n  encrypted_suffix: b\n", "encrypted_suffix and encrypted_regex contradict"},
		"BadRegex":      {head + recipient + "  encrypted_regex: '('\n", "encrypted_regex is no regular expression"},
		"BadTime":       {"sops:\n  mac: x\n  lastmodified: now\n" + recipient, "lastmodified is no time"},
		"Alias":         {"b: &x 1\n" + head + recipient, "anchors and aliases"},
		"DuplicateKey":  {"a_unencrypted: 1\na_unencrypted: 2\n" + head + recipient, "a key stands twice"},
		"NumberAsAKey":  {"1: x\n" + head + recipient, "a key must be a string"},
		"NumberTooLong": {"a_unencrypted: 18446744073709551615\n" + head + recipient, "SOPS has no form"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := sops.Parse([]byte(tc.data))
			if !errors.As(err, new(*sops.Error)) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v; want %q", err, tc.want)
			}
		})
	}
}

// TestNoKey shows that a missing key is told from a broken file, and names the
// public keys that would do.
func TestNoKey(t *testing.T) {
	t.Parallel()
	for name, ids := range map[string][]age.Identity{"None": nil, "Another": identities(t, "pq-keys.txt")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := open(read(t, "testdata/two-recipients.yaml"), ids)
			var failed *sops.Error
			if !errors.As(err, &failed) || !failed.NoKey {
				t.Fatalf("error %v; want that there is no key", err)
			}
			for _, file := range []string{"keys.txt", "other-keys.txt"} {
				if want := recipientOf(t, file); !strings.Contains(failed.Message, want) {
					t.Errorf("%q does not name %s", failed.Message, want)
				}
			}
		})
	}
	if _, err := open(read(t, "testdata/two-recipients.yaml"), identities(t, "other-keys.txt")); err != nil {
		t.Errorf("the other of two recipients: %v", err)
	}
}

// FuzzFile changes bytes of a file: whatever is changed, the file decrypts to
// what it was or to nothing.
func FuzzFile(f *testing.F) {
	for i, name := range []string{"encrypted-regex.yaml", "mac-only.yaml", "whole.yaml", "encrypted-comment.yaml"} {
		f.Add(uint8(i), uint16(100*i), []byte("x"), false)
		f.Add(uint8(i), uint16(500+len(name)), []byte{}, true)
	}
	names := []string{"encrypted-regex.yaml", "mac-only.yaml", "whole.yaml", "encrypted-comment.yaml"}
	ids := identities(f, "keys.txt")
	var files [][]byte
	var wants []map[string]any
	for _, name := range names {
		data := read(f, filepath.Join("testdata", name))
		files, wants = append(files, data), append(wants, encryptedOf(f, data, ids))
	}
	f.Fuzz(func(t *testing.T, file uint8, at uint16, put []byte, insert bool) {
		i := int(file) % len(files)
		data := files[i]
		from := int(at) % len(data)
		to := from + len(put)
		if insert {
			to = from
		}
		data = slices.Concat(data[:from], put, data[min(to, len(data)):])
		leaves, err := open(data, ids)
		if err != nil {
			if !errors.As(err, new(*sops.Error)) {
				t.Errorf("error %v of type %T", err, err)
			}
			return
		}
		for _, l := range leaves {
			key := strings.Join(l.Path, "/")
			if want, ok := wants[i][key]; ok && want != l.Value && !sameText(want, l.Value) {
				t.Errorf("%s is %v after a change, and was %v", key, l.Value, want)
			}
		}
	})
}

// sameText: the type of a value is bound to nothing in the format of SOPS, so
// the number 3 can be made the text "3", but nothing else.
func sameText(a, b any) bool {
	return strings.EqualFold(textOf(a), textOf(b))
}

func textOf(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case bool:
		return strconv.FormatBool(v)
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	default:
		return ""
	}
}

// FuzzParse reads anything.
func FuzzParse(f *testing.F) {
	f.Add([]byte("sops: {age: [], mac: x}\n"))
	f.Add([]byte("a: &x [*x]\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if _, err := sops.Parse(data); err != nil && !errors.As(err, new(*sops.Error)) {
			t.Errorf("error %v of type %T", err, err)
		}
	})
}

func open(data []byte, ids []age.Identity) ([]sops.Leaf, error) {
	f, err := sops.Parse(data)
	if err != nil {
		return nil, err
	}
	opened, err := f.Decrypt(ids)
	if err != nil {
		return nil, err
	}
	return opened.Leaves, nil
}

func encryptedOf(t testing.TB, data []byte, ids []age.Identity) map[string]any {
	t.Helper()
	leaves, err := open(data, ids)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]any{}
	for _, l := range leaves {
		out[strings.Join(l.Path, "/")] = l.Value
	}
	return out
}

// failer is a test, or a check of rapid.
type failer interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// decrypted puts what was decrypted into what Helm reads of the file.
func decrypted(t failer, data []byte, ids []age.Identity) map[string]any {
	t.Helper()
	leaves, err := open(data, ids)
	if err != nil {
		t.Fatal(err)
	}
	var top map[string]any
	if err := yaml.Unmarshal(data, &top); err != nil {
		t.Fatal(err)
	}
	delete(top, sops.Key)
	out := withoutComments(top)
	for _, l := range leaves {
		out = put(t, out, l.Path, l.Value)
	}
	m, _ := out.(map[string]any)
	return m
}

func withoutComments(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k := range v {
			v[k] = withoutComments(v[k])
		}
	case []any:
		out := []any{}
		for _, item := range v {
			if !sops.IsComment(item) {
				out = append(out, withoutComments(item))
			}
		}
		return out
	}
	return v
}

func put(t failer, in any, path []string, value any) any {
	t.Helper()
	if len(path) == 0 {
		return value
	}
	switch in := in.(type) {
	case map[string]any:
		in[path[0]] = put(t, in[path[0]], path[1:], value)
	case []any:
		i, err := strconv.Atoi(path[0])
		if err != nil || i >= len(in) {
			t.Fatalf("no item %s", path[0])
		}
		in[i] = put(t, in[i], path[1:], value)
	default:
		t.Fatalf("nothing at %v", path)
	}
	return in
}

func identities(t testing.TB, files ...string) []age.Identity {
	t.Helper()
	var out []age.Identity
	for _, file := range files {
		ids, err := sops.Keys{File: filepath.Join("testdata", file)}.Identities()
		if err != nil || len(ids) == 0 {
			t.Fatalf("%s: %v", file, err)
		}
		out = append(out, ids...)
	}
	return out
}

func recipientOf(t testing.TB, file string) string {
	t.Helper()
	return regexp.MustCompile(`age1\S+`).FindString(string(read(t, filepath.Join("testdata", file))))
}

func read(t testing.TB, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
