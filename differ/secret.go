package differ

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
)

const (
	maskPrefix = "hmac-sha256:"
	maskBytes  = 16
	// lastApplied is kubectl's copy of the whole object, Secret data included.
	lastApplied = "kubectl.kubernetes.io/last-applied-configuration"
)

// canonical returns a copy of an object, shallow where nothing changes, with
// what the API server alone writes left out and stringData moved into data, as
// the API server does on a write.
func canonical(object map[string]any) map[string]any {
	if object == nil {
		return nil
	}
	out := maps.Clone(object)
	delete(out, "status")
	if meta, ok := object["metadata"].(map[string]any); ok {
		meta = maps.Clone(meta)
		for _, name := range []string{
			"managedFields", "resourceVersion", "uid", "generation", "creationTimestamp",
			"deletionTimestamp", "deletionGracePeriodSeconds", "selfLink",
		} {
			delete(meta, name)
		}
		out["metadata"] = meta
	}
	if object["kind"] == "Secret" && object["apiVersion"] == "v1" {
		encodeStringData(out)
	}
	return out
}

// encodeStringData moves stringData into data. What is no string stays where it
// is: the API server will refuse it, and say so better than an absence would.
func encodeStringData(secret map[string]any) {
	plain, ok := secret["stringData"].(map[string]any)
	if !ok {
		return
	}
	data, ok := secret["data"].(map[string]any)
	if !ok && secret["data"] != nil {
		return
	}
	data = maps.Clone(data)
	if data == nil {
		data = map[string]any{}
	}
	rest := map[string]any{}
	for k, v := range plain {
		switch v := v.(type) {
		case nil:
		case string:
			data[k] = base64.StdEncoding.EncodeToString([]byte(v))
		default:
			rest[k] = v
		}
	}
	delete(secret, "stringData")
	if len(rest) > 0 {
		secret["stringData"] = rest
	}
	if len(data) > 0 {
		secret["data"] = data
	}
}

// mask replaces what must not be seen by keyed hashes, so that equal data of one place
// stays equal and nothing else can be told from it. The place goes into the hash: were
// equal values of two Secrets to look alike, one who may set his own, and sees diffs,
// could try what another holds.
type mask struct {
	key []byte
	id  ID
	// secret says that the object is a Secret. The object itself may not tell:
	// parts of one have no kind.
	secret bool
}

func maskFor(id ID, key []byte) mask {
	return mask{key: key, id: id, secret: id.Group == "" && id.Kind == "Secret"}
}

// of returns a canonical object, masked; the object itself where there is
// nothing to hide.
func (m mask) of(object map[string]any) map[string]any {
	if object == nil {
		return nil
	}
	object = m.lastApplied(object)
	if !m.secret {
		return object
	}
	out := maps.Clone(object)
	for _, name := range []string{"data", "stringData"} {
		switch v := object[name].(type) {
		case nil:
		case map[string]any:
			hidden := make(map[string]any, len(v))
			for k, v := range v {
				hidden[k] = m.value(v, name, k)
			}
			out[name] = hidden
		default:
			out[name] = m.value(v, name)
		}
	}
	return out
}

func (m mask) lastApplied(object map[string]any) map[string]any {
	meta, _ := object["metadata"].(map[string]any)
	annotations, _ := meta["annotations"].(map[string]any)
	v, ok := annotations[lastApplied]
	if !ok {
		return object
	}
	out, meta, annotations := maps.Clone(object), maps.Clone(meta), maps.Clone(annotations)
	annotations[lastApplied] = m.value(v, "metadata", "annotations", lastApplied)
	meta["annotations"] = annotations
	out["metadata"] = meta
	return out
}

// value hashes a value and its place; one that is masked already (from the record) stays.
// Base64 is decoded first, because its line breaks carry no meaning.
func (m mask) value(v any, path ...string) any {
	if v == nil {
		return nil
	}
	s, ok := v.(string)
	if !ok {
		// Malformed, and as secret as any.
		s = fmt.Sprintf("%T %v", v, v)
	}
	if isMasked(s) {
		return s
	}
	plain, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		plain = []byte(s)
	}
	mac := hmac.New(sha256.New, m.key)
	for _, part := range append([]string{m.id.Group, m.id.Kind, m.id.Namespace, m.id.Name}, path...) {
		fmt.Fprintf(mac, "%d:%s", len(part), part) // so that no two places are written alike
	}
	mac.Write([]byte{0})
	mac.Write(plain)
	return maskPrefix + hex.EncodeToString(mac.Sum(nil)[:maskBytes])
}

// hides reports whether an object has masked values, so that it can't be written.
func (m mask) hides(object map[string]any) bool {
	masked := func(v any) bool {
		s, ok := v.(string)
		return ok && isMasked(s)
	}
	if masked(nested(object, "metadata", "annotations", lastApplied)) {
		return true
	}
	if !m.secret {
		return false
	}
	for _, name := range []string{"data", "stringData"} {
		values, _ := object[name].(map[string]any)
		if masked(object[name]) || slices.ContainsFunc(slices.Collect(maps.Values(values)), masked) {
			return true
		}
	}
	return false
}

// isMasked knows a mask by its whole form: a value that only begins like one
// must not get through.
func isMasked(s string) bool {
	digits, ok := strings.CutPrefix(s, maskPrefix)
	if !ok || len(digits) != 2*maskBytes {
		return false
	}
	_, err := hex.DecodeString(digits)
	return err == nil
}
