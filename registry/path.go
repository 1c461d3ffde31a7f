package registry

import (
	"fmt"
	"strconv"
	"strings"
)

// FormatPath formats a path of keys: .image.tag. Keys are quoted if they hold anything but letters,
// digits, dashes and underscores. List items look like keys here; [Delivery.Explain] shows them as
// [2].
func FormatPath(path []string) string {
	var b strings.Builder
	for _, key := range path {
		b.WriteString(formatKey(key))
	}
	if b.Len() == 0 {
		return "."
	}
	return b.String()
}

func formatKey(key string) string {
	plain := key != "" && !strings.ContainsFunc(key, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_'
	})
	if plain {
		return "." + key
	}
	return "." + strconv.Quote(key)
}

// ParsePath parses a path in the form of [FormatPath] and [Delivery.Explain]: .controller.args[2],
// .nodeSelector."kubernetes.io/os". The leading dot is optional; "" and "." are the root. A list
// item is its index.
func ParsePath(s string) ([]string, error) {
	rest := s
	if rest != "" && rest[0] != '.' && rest[0] != '[' {
		rest = "." + rest
	}
	if rest == "." {
		return nil, nil
	}
	var path []string
	for rest != "" {
		key, after, err := nextKey(rest)
		if err != nil {
			return nil, fmt.Errorf("path %q: %w", s, err)
		}
		path, rest = append(path, key), after
	}
	return path, nil
}

// nextKey splits .key, ."key", [2] or ["key"] from the front.
func nextKey(s string) (key, rest string, err error) {
	if s[0] == '[' {
		inside, after, ok := strings.Cut(s[1:], "]")
		if strings.HasPrefix(s[1:], `"`) {
			quoted, err := strconv.QuotedPrefix(s[1:])
			if err != nil || !strings.HasPrefix(s[1+len(quoted):], "]") {
				return "", "", fmt.Errorf("a bracket or quote is not closed")
			}
			return unquote(quoted, s[len(quoted)+2:])
		}
		if _, err := strconv.ParseUint(inside, 10, 31); !ok || err != nil {
			return "", "", fmt.Errorf("brackets hold the number of an item, or a quoted key")
		}
		return inside, after, nil
	}
	if s[0] != '.' {
		return "", "", fmt.Errorf("expected a dot before %q", s)
	}
	s = s[1:]
	if strings.HasPrefix(s, `"`) {
		quoted, err := strconv.QuotedPrefix(s)
		if err != nil {
			return "", "", fmt.Errorf("a quote is not closed")
		}
		return unquote(quoted, s[len(quoted):])
	}
	end := strings.IndexAny(s, ".[")
	if end < 0 {
		end = len(s)
	}
	if end == 0 {
		return "", "", fmt.Errorf("a key is empty")
	}
	return s[:end], s[end:], nil
}

func unquote(quoted, after string) (key, rest string, err error) {
	key, err = strconv.Unquote(quoted)
	if err != nil {
		return "", "", fmt.Errorf("%s is not quoted as a Go string is: %w", quoted, err)
	}
	return key, after, nil
}
