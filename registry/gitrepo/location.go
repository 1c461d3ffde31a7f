package gitrepo

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

// location is the address of a repository.
type location struct {
	// path is the path of a local repository; empty for a remote repository.
	path string
	// url of a remote repository, without a password.
	url string
	// username and password were given for this URL. They override the credentials file.
	username, password string
	credentials        string // a file; may be empty
	hide               func(...string)
}

// shown returns the location without a password, for errors.
func (l location) shown() string {
	if l.path != "" {
		return l.path
	}
	return l.url
}

// folder returns the name of the location's folder in the cache.
func (l location) folder() string {
	sum := sha256.Sum256([]byte(l.shown()))
	base := strings.TrimSuffix(filepath.Base(l.shown()), ".git")
	keep := func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' {
			return r
		}
		return '_'
	}
	return strings.Map(keep, base) + "-" + hex.EncodeToString(sum[:8])
}

// locate parses a path or URL. Its errors do not repeat the URL, which may hold a password.
func locate(opts Options) (location, error) {
	raw := opts.URL
	switch {
	case raw == "":
		return location{}, fmt.Errorf("no repository given")
	case strings.HasPrefix(raw, "-"):
		return location{}, fmt.Errorf("a repository must not start with a dash")
	case isSCP(raw):
		if user, host, ok := strings.Cut(raw, "@"); ok && strings.Contains(user, ":") && strings.Contains(host, ":") {
			return location{}, fmt.Errorf("a repository's user must not hold a password: ssh takes a key")
		}
		return location{url: raw, credentials: opts.Credentials, hide: opts.hide()}, nil
	case !strings.Contains(raw, "://"):
		return localPath(raw)
	}
	u, err := url.Parse(raw)
	if err != nil {
		return location{}, fmt.Errorf("the repository's URL can't be read")
	}
	if u.RawQuery != "" || u.Fragment != "" {
		return location{}, fmt.Errorf("a repository's URL must end with its path: what follows ? or # may be a secret, and would be shown")
	}
	switch u.Scheme {
	case "file":
		if u.Host != "" && u.Host != "localhost" {
			return location{}, fmt.Errorf("a file:// URL names a path on this machine: file:///path, not file://%s", u.Host)
		}
		return localPath(u.Path)
	case "http", "https":
		return httpLocation(u, opts), nil
	case "ssh", "git+ssh":
		u.Scheme = "ssh"
		if u.User != nil {
			u.User = url.User(u.User.Username())
		}
		return location{url: u.String(), credentials: opts.Credentials, hide: opts.hide()}, nil
	default:
		return location{}, fmt.Errorf("the scheme %s:// is not supported: give a path, or a file, http, https or ssh URL", u.Scheme)
	}
}

// httpLocation removes the credentials from the URL, so that neither go-git's errors nor the
// clone's config can hold them.
func httpLocation(u *url.URL, opts Options) location {
	user, password := opts.Username, opts.Password
	if u.User != nil && user == "" && password == "" {
		user = u.User.Username()
		password, _ = u.User.Password()
	}
	u.User = nil
	return location{url: u.String(), username: user, password: password, credentials: opts.Credentials, hide: opts.hide()}
}

func localPath(path string) (location, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return location{}, fmt.Errorf("find %s: %w", path, err)
	}
	if real, err := filepath.EvalSymlinks(abs); err == nil {
		abs = real // so that a repository has one cache folder, whatever path leads to it
	}
	return location{path: abs}, nil
}

// isSCP reports whether raw is user@host:path and not a path, with git's rule: a colon before the
// first slash, and no such file.
func isSCP(raw string) bool {
	colon := strings.Index(raw, ":")
	slash := strings.Index(raw, "/")
	if colon <= 0 || strings.Contains(raw, "://") || slash >= 0 && slash < colon {
		return false
	}
	_, err := os.Lstat(raw)
	return err != nil
}

func (o Options) hide() func(...string) {
	if o.Hide == nil {
		return func(...string) {}
	}
	return o.Hide
}
