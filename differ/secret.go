package differ

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"maps"
	"strings"
)

const (
	maskPrefix = "hmac-sha256:"
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
	if isSecret(out) {
		encodeStringData(out)
	}
	return out
}

func isSecret(object map[string]any) bool {
	return object["kind"] == "Secret" && object["apiVersion"] == "v1"
}

func encodeStringData(secret map[string]any) {
	plain, ok := secret["stringData"].(map[string]any)
	if !ok {
		return
	}
	data, _ := secret["data"].(map[string]any)
	data = maps.Clone(data)
	if data == nil {
		data = map[string]any{}
	}
	for k, v := range plain {
		if s, ok := v.(string); ok {
			data[k] = base64.StdEncoding.EncodeToString([]byte(s))
		}
	}
	delete(secret, "stringData")
	secret["data"] = data
}

// masked returns a canonical object with the data of Secrets replaced by keyed
// hashes, so that equal data stays equal and nothing else can be read from it.
func masked(object map[string]any, key []byte) map[string]any {
	if object == nil {
		return nil
	}
	object = maskLastApplied(object, key)
	if !isSecret(object) {
		return object
	}
	data, ok := object["data"].(map[string]any)
	if !ok {
		return object
	}
	out := maps.Clone(object)
	hidden := make(map[string]any, len(data))
	for k, v := range data {
		hidden[k] = maskValue(v, key)
	}
	out["data"] = hidden
	return out
}

func maskLastApplied(object map[string]any, key []byte) map[string]any {
	meta, _ := object["metadata"].(map[string]any)
	annotations, _ := meta["annotations"].(map[string]any)
	v, ok := annotations[lastApplied]
	if !ok {
		return object
	}
	out, meta, annotations := maps.Clone(object), maps.Clone(meta), maps.Clone(annotations)
	annotations[lastApplied] = maskValue(v, key)
	meta["annotations"] = annotations
	out["metadata"] = meta
	return out
}

// maskValue hashes a value; one that is masked already (from the record) stays.
// Base64 is decoded first, because its line breaks carry no meaning.
func maskValue(v any, key []byte) any {
	s, ok := v.(string)
	if !ok || strings.HasPrefix(s, maskPrefix) {
		return v
	}
	plain, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		plain = []byte(s)
	}
	mac := hmac.New(sha256.New, key)
	mac.Write(plain)
	return maskPrefix + hex.EncodeToString(mac.Sum(nil)[:16])
}
