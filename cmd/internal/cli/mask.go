package cli

import (
	"maps"
	"regexp"
	"slices"
	"strings"
)

// masked replaces hidden values. It is no valid base64, so an API server rejects a Secret with it.
const masked = "***"

// lastApplied is kubectl's copy of a whole object.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// MaskSecret returns a Secret with its data masked, and any other object as it
// is. It does not modify the object.
func MaskSecret(object map[string]any) map[string]any {
	if object["kind"] != "Secret" || object["apiVersion"] != "v1" {
		return object
	}
	out := maps.Clone(object)
	for _, field := range []string{"data", "stringData"} {
		if data, ok := out[field].(map[string]any); ok {
			out[field] = maskAll(data)
		}
	}
	metadata, _ := out["metadata"].(map[string]any)
	if annotations, ok := metadata["annotations"].(map[string]any); ok && annotations[lastApplied] != nil {
		metadata, annotations = maps.Clone(metadata), maps.Clone(annotations)
		annotations[lastApplied] = masked
		metadata["annotations"] = annotations
		out["metadata"] = metadata
	}
	return out
}

func maskAll(data map[string]any) map[string]any {
	out := make(map[string]any, len(data))
	for k, v := range data {
		if v != nil {
			v = masked
		}
		out[k] = v
	}
	return out
}

// SecretNames finds keys whose values are hidden: keys for secrets, but not keys for names of
// secrets (secretName, tokenRef).
type SecretNames struct{ secret, name *regexp.Regexp }

// NewSecretNames returns the built-in patterns.
func NewSecretNames() SecretNames {
	return SecretNames{
		secret: regexp.MustCompile(`(?i)passw(or)?d|passphrase|token|secret|credential|(private|api|access)[-_]?key`),
		name:   regexp.MustCompile(`(?i)(name|namespace|ref)s?$`),
	}
}

func (s SecretNames) matches(key string) bool {
	return s.secret.MatchString(key) && !s.name.MatchString(key)
}

// MatchesAny checks every step of a path.
func (s SecretNames) MatchesAny(path []string) bool {
	return slices.ContainsFunc(path, s.matches)
}

// Mask returns a value for output; secret means that a key above it is secret. Booleans and empty
// values reveal nothing.
func (s SecretNames) Mask(v any, secret bool) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for key, child := range v {
			out[key] = s.Mask(child, secret || s.matches(key))
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, child := range v {
			out[i] = s.Mask(child, secret)
		}
		return out
	case nil, bool:
		return v
	case string:
		if !secret || strings.TrimSpace(v) == "" {
			return v
		}
	}
	if secret {
		return masked
	}
	return v
}
