package applier_test

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
)

func text(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// follow finds a path of a FieldsV1 in an object.
func follow(v any, path []string) (any, bool) {
	for _, k := range path {
		name, ok := strings.CutPrefix(k, "f:")
		if ok {
			m, _ := v.(object)
			if v, ok = m[name]; !ok {
				return nil, false
			}
			continue
		}
		items, _ := v.(list)
		found := false
		for _, it := range items {
			if found = matches(it, k); found {
				v = it
				break
			}
		}
		if !found {
			return nil, false
		}
	}
	return v, true
}

// matches reports whether a list item bears a key of a FieldsV1.
func matches(item any, k string) bool {
	if s, ok := strings.CutPrefix(k, "v:"); ok {
		return text(item) == s
	}
	s, ok := strings.CutPrefix(k, "k:")
	var key object
	if !ok || json.Unmarshal([]byte(s), &key) != nil {
		return false
	}
	return hasKey(item, key)
}

func hasKey(item any, key object) bool {
	m, _ := item.(object)
	for name, v := range key {
		have := m[name]
		if have == nil && name == "protocol" {
			have = "TCP"
		}
		if text(have) != text(v) {
			return false
		}
	}
	return m != nil
}

// lookup finds a path as plans show it. It is not ok when it can't be read.
func lookup(v any, path string) (found any, there, ok bool) {
	for path != "" {
		if path[0] == '.' {
			m, isMap := v.(object)
			if !isMap {
				return nil, false, true
			}
			name := ""
			for k := range m {
				if rest, fits := strings.CutPrefix(path[1:], k); fits && (rest == "" || rest[0] == '.' || rest[0] == '[') && len(k) > len(name) {
					name = k
				}
			}
			if name == "" {
				return nil, false, true
			}
			v, path = m[name], path[1+len(name):]
			continue
		}
		end := strings.IndexByte(path, ']')
		if path[0] != '[' || end < 0 {
			return nil, false, false
		}
		key, err := itemKey(path[1:end])
		if err != nil {
			return nil, false, false
		}
		path = path[end+1:]
		items, _ := v.(list)
		at := slices.IndexFunc(items, func(it any) bool {
			if value, isValue := key[""]; isValue {
				return text(it) == text(value)
			}
			return hasKey(it, key)
		})
		if at < 0 {
			return nil, false, true
		}
		v = items[at]
	}
	return v, true, true
}

var errKey = errors.New("no key of a list item")

// itemKey reads name="web",port=80 or ="x".
func itemKey(s string) (object, error) {
	out := object{}
	for part := range strings.SplitSeq(s, ",") {
		name, value, ok := strings.Cut(part, "=")
		var v any
		if !ok || json.Unmarshal([]byte(value), &v) != nil {
			return nil, errKey
		}
		out[name] = v
	}
	return out, nil
}
