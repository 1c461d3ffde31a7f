// Package naming says which names a fleet repository may use: of clusters, components, charts,
// versions, tags and git refs.
//
// A check returns what is wrong with a name, or "". Names become parts of object names, of paths
// and of refs, so each check also keeps a name from leading elsewhere.
package naming

import (
	"fmt"
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/Masterminds/semver/v3"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// Check returns what is wrong with the name of a cluster, a component or another file. The name
// must be a DNS label, because it becomes part of object names and labels.
func Check(name string) string {
	switch {
	case name == "":
		return "a name must not be empty"
	case len(name) > 63:
		return fmt.Sprintf("name %q has %d characters, at most 63 are allowed", name, len(name))
	}
	for i, r := range name {
		ok := r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' && i > 0 && i < len(name)-1
		if !ok {
			return fmt.Sprintf("name %q must be a DNS label: lower-case letters, digits and inner dashes", name)
		}
	}
	return ""
}

// ParseVersion parses a version as written in a file (v1.12.0). HEAD is an error.
func ParseVersion(version string) (*semver.Version, error) {
	rest, ok := strings.CutPrefix(version, "v")
	if !ok {
		return nil, fmt.Errorf("version %q does not start with v", version)
	}
	v, err := semver.StrictNewVersion(rest)
	if err != nil {
		return nil, fmt.Errorf("version %q: %w", version, err)
	}
	return v, nil
}

// CheckVersion returns what is wrong with a version as written, and a suggestion.
func CheckVersion(version string) (message, hint string) {
	if version == v1alpha1.VersionHead {
		return "", ""
	}
	if _, err := ParseVersion(version); err == nil {
		return "", ""
	}
	message = fmt.Sprintf("version %q is neither vX.Y.Z nor HEAD", version)
	if v, err := semver.NewVersion(strings.TrimPrefix(version, "v")); err == nil {
		return message, fmt.Sprintf("did you mean v%s?", v)
	}
	if strings.EqualFold(version, v1alpha1.VersionHead) {
		return message, "did you mean HEAD?"
	}
	return message, ""
}

// SplitTag splits the name of a tag (coredns/v1.12.0). It returns false if the tag does not publish
// a version of a component.
func SplitTag(tag string) (component, version string, ok bool) {
	component, version, ok = strings.Cut(tag, "/")
	if !ok || Check(component) != "" || CheckRef(tag) != "" {
		return "", "", false
	}
	if _, err := ParseVersion(version); err != nil {
		return "", "", false
	}
	return component, version, true
}

// CheckRef returns what is wrong with a name that becomes part of a ref. The rules are the rules of
// git check-ref-format that keep a name from being read as an option, a path or an expression.
func CheckRef(name string) string {
	switch {
	case name == "":
		return "a revision must not be empty"
	case len(name) > 255:
		return "the revision is longer than 255 characters"
	case !utf8.ValidString(name):
		return "the revision is not UTF-8"
	case strings.HasPrefix(name, "-"):
		return "a revision must not start with a dash"
	case strings.HasPrefix(name, "/"), strings.HasSuffix(name, "/"), strings.HasSuffix(name, "."):
		return "a revision must not start with a slash or end with a slash or dot"
	case strings.Contains(name, ".."), strings.Contains(name, "//"), strings.Contains(name, "@{"):
		return `a revision must not contain "..", "//" or "@{"`
	}
	for part := range strings.SplitSeq(name, "/") {
		if strings.HasPrefix(part, ".") || strings.HasSuffix(part, ".lock") || part == "@" {
			return `no part of a revision may be "@", start with a dot or end with ".lock"`
		}
	}
	if strings.ContainsFunc(name, func(r rune) bool {
		return unicode.IsControl(r) || strings.ContainsRune(" ~^:?*[\\", r)
	}) {
		return "a revision must not contain spaces, control characters or any of ~^:?*[\\"
	}
	return ""
}

// CheckDigest returns what is wrong with a digest.
func CheckDigest(digest string) string {
	hex, ok := strings.CutPrefix(digest, "sha256:")
	if ok && len(hex) == 64 && strings.Trim(hex, "0123456789abcdef") == "" {
		return ""
	}
	return fmt.Sprintf("digest %q is not sha256: and 64 hex digits", digest)
}

// CheckComponent returns what is wrong with the name of a component; "" for a valid name.
func CheckComponent(name string) string {
	if name == "cluster" {
		return "a component can't be called cluster: clusters/NAME/cluster.yaml is the cluster itself"
	}
	return Check(name)
}

// CheckChart returns what is wrong with the name of a chart; "" for a valid name. It becomes
// the name of a file and of a folder.
func CheckChart(name string) string {
	bad := strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("._-", r)
	})
	switch {
	case name == "" || len(name) > 250: // Helm's limit
		return fmt.Sprintf("a chart's name has 1 to 250 characters, and not %d", len(name))
	case bad || name[0] == '.' || name[0] == '-':
		return fmt.Sprintf("%q is no name for a chart: it holds letters, digits, dashes, dots and underscores, and starts with none of the signs", name)
	}
	return ""
}

// CheckChartURL returns what is wrong with the origin of a chart; "" for a valid origin.
func CheckChartURL(place string) string {
	u, err := url.Parse(place)
	if err != nil {
		return fmt.Sprintf("%q is no URL", place)
	}
	switch u.Scheme {
	case "oci", "https", "http":
		switch {
		case u.Host == "" || u.Opaque != "":
			return fmt.Sprintf("url %q names no host", place)
		case u.User != nil:
			return "a url must not hold credentials: many people can read what is in git"
		case u.RawQuery != "" || u.Fragment != "":
			return fmt.Sprintf("url %q must end with its path", place)
		}
		return ""
	case "file":
		if u.Host != "" || u.Opaque == "" || strings.HasPrefix(u.Opaque, "/") {
			return fmt.Sprintf("url %q must be file: and a path from the root of the repository", place)
		}
		return ""
	default:
		return fmt.Sprintf("url %q starts with neither oci:, https: nor file:", place)
	}
}
