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

// canonical returns a copy of an object, shallow where nothing changes. It omits fields that only
// the API server writes, and moves stringData into data, as the API server does on a write.
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

// encodeStringData moves stringData into data. A value that is no string stays in stringData: the
// API server refuses it with a better error than a missing key would cause.
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

// mask replaces secret values by keyed hashes. Equal data at one place gives equal hashes, and a
// hash reveals nothing else. The place is part of the hash. Otherwise an author of one Secret who
// sees diffs could guess the values of another Secret.
type mask struct {
	key []byte
	id  ID
	// secret means that the object is a Secret. Parts of an object have no kind, so the object
	// can't show this.
	secret bool
}

func maskFor(id ID, key []byte) mask {
	return mask{key: key, id: id, secret: id.Group == "" && id.Kind == "Secret"}
}

// apply returns a canonical object, masked. It returns the object itself if no value is secret.
func (m mask) apply(object map[string]any) map[string]any {
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

// value hashes a value and its place. A masked value (from the record) is returned as it is. Base64
// is decoded first, because its line breaks carry no meaning.
func (m mask) value(v any, path ...string) any {
	if v == nil {
		return nil
	}
	s, ok := v.(string)
	if !ok {
		// Malformed, and as secret as any other value.
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
		fmt.Fprintf(mac, "%d:%s", len(part), part) // so that no two places give the same bytes
	}
	mac.Write([]byte{0})
	mac.Write(plain)
	return maskPrefix + hex.EncodeToString(mac.Sum(nil)[:maskBytes])
}

// hides reports whether an object has masked values, so that it can't be sent.
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

// isMasked checks the whole form of a mask: a secret value with the same prefix must be masked,
// too.
func isMasked(s string) bool {
	digits, ok := strings.CutPrefix(s, maskPrefix)
	if !ok || len(digits) != 2*maskBytes {
		return false
	}
	_, err := hex.DecodeString(digits)
	return err == nil
}
