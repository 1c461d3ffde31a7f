package differ_test

import (
	"strings"
	"testing"

	"github.com/keelson-io/keelson/differ"
)

// Only a text with the whole form of a mask counts as a mask: any other value of a Secret is
// masked.
func TestIsMasked(t *testing.T) {
	t.Parallel()
	const digits = "0123456789abcdef0123456789abcdef"
	for text, want := range map[string]bool{
		"hmac-sha256:" + digits:                  true,
		"hmac-sha256:" + strings.Repeat("0", 32): true,
		"hmac-sha256:" + digits[2:]:              false,
		"hmac-sha256:" + digits[1:]:              false,
		"hmac-sha256:" + digits + "00":           false,
		"hmac-sha256:" + digits[1:] + "g":        false,
		"hmac-sha256:" + strings.ToUpper(digits): true,
		"hmac-sha256:":                           false,
		"hmac-sha512:" + digits:                  false,
		" hmac-sha256:" + digits:                 false,
		digits:                                   false,
		"":                                       false,
	} {
		if differ.IsMasked(text) != want {
			t.Errorf("%q passes for a mask: %v", text, !want)
		}
		masked, ok := differ.MaskValue(text, []byte("key")).(string)
		if !ok || !differ.IsMasked(masked) || (masked == text) != want {
			t.Errorf("%q is hidden as %q", text, masked)
		}
	}
}

// The same data in any form has the same mask. Other data or another key gives another mask.
func TestMaskValue(t *testing.T) {
	t.Parallel()
	key := []byte("key")
	same := func(a, b any) bool { return differ.MaskValue(a, key) == differ.MaskValue(b, key) }
	if !same("aHVudGVyMg==", "aHVudGVy\nMg==\n") {
		t.Error("line breaks in base64 mean something")
	}
	if same("aHVudGVyMg==", "aHVudGVyMw==") || same("a", "b") || same(int64(1), "1") || same(int64(1), 1.5) || same(list{"a"}, list{"b"}) {
		t.Error("different values have one mask")
	}
	if differ.MaskValue("a", key) == differ.MaskValue("a", []byte("other")) {
		t.Error("two keys give one mask")
	}
	if differ.MaskValue(nil, key) != nil {
		t.Error("nothing is hidden")
	}
}

// Equal values at two places have two masks. So a reader of diffs can't use their own Secret to
// find the value of another Secret.
func TestMaskedPlaces(t *testing.T) {
	t.Parallel()
	places := []struct {
		id   differ.ID
		path []string
	}{
		{differ.ID{Kind: "Secret", Namespace: "team-a", Name: "mine"}, []string{"data", "key"}},
		{differ.ID{Kind: "Secret", Namespace: "payments", Name: "mine"}, []string{"data", "key"}},
		{differ.ID{Kind: "Secret", Namespace: "team-a", Name: "other"}, []string{"data", "key"}},
		{differ.ID{Kind: "Secret", Namespace: "team-a", Name: "mine"}, []string{"data", "other"}},
		{differ.ID{Kind: "Secret", Namespace: "team-a", Name: "mine"}, []string{"stringData", "key"}},
		{differ.ID{Kind: "Secret", Namespace: "team-a", Name: "min"}, []string{"edata", "key"}}, // the same letters
		{differ.ID{Kind: "Secret", Namespace: "team-a", Name: "mine"}, []string{"data"}},
		{differ.ID{Kind: "ConfigMap", Namespace: "team-a", Name: "mine"}, []string{"metadata", "annotations", "a"}},
	}
	seen := map[any]int{}
	for i, p := range places {
		mask := differ.MaskAt(p.id, "aHVudGVyMg==", []byte("key"), p.path...)
		if other, ok := seen[mask]; ok {
			t.Errorf("%+v and %+v have one mask", places[other], p)
		}
		seen[mask] = i
		if again := differ.MaskAt(p.id, "aHVudGVyMg==", []byte("key"), p.path...); again != mask {
			t.Errorf("%+v has two masks", p)
		}
	}
}
