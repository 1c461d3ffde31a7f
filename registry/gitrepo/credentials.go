package gitrepo

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/keelson-io/keelson/registry/yamlfile"
)

// credentials maps addresses, as addressOf returns them, to logins.
type credentials map[string]login

// login is the login at one address, with what verifies the server.
type login struct {
	Username string `json:"username,omitempty"`
	// Password is the password; PasswordFile is a file with only the password in it. An access
	// token is the password of any user name.
	Password     string `json:"password,omitempty"`
	PasswordFile string `json:"passwordFile,omitempty"`
	// Token, or the content of TokenFile, is sent as "Authorization: Bearer".
	Token     string `json:"token,omitempty"`
	TokenFile string `json:"tokenFile,omitempty"`
	// PlainHTTP allows sending credentials over http.
	PlainHTTP bool `json:"plainHTTP,omitempty"`
	// CAFile holds the CA certificates for this address. They replace the system's.
	CAFile string `json:"caFile,omitempty"`
	// KeyFile is an SSH private key, and PassphraseFile holds its passphrase. Without KeyFile, the
	// SSH agent is used.
	KeyFile        string `json:"keyFile,omitempty"`
	PassphraseFile string `json:"passphraseFile,omitempty"`
	// KnownHostsFile holds the SSH host keys. The default is the files of the user and the system.
	KnownHostsFile string `json:"knownHostsFile,omitempty"`
}

// readCredentials reads a credentials file; "" is none. Its errors never show the content.
func readCredentials(file string) (credentials, error) {
	if file == "" {
		return nil, nil
	}
	data, err := readSmall(file)
	if err != nil {
		return nil, fmt.Errorf("read credentials: %w", err)
	}
	return parseCredentials(file, data)
}

func parseCredentials(file string, data []byte) (credentials, error) {
	// parseDocument bounds aliases and depth, and its errors show positions without values.
	doc := yamlfile.Parse(data)
	if doc.Broken || len(doc.Mistakes) > 0 {
		return nil, doc.In(file).Err()
	}
	raw := map[string]login{}
	if err := yaml.UnmarshalStrict(data, &raw); err != nil {
		// err itself is not returned, because it may show a misplaced secret.
		return nil, fmt.Errorf("%s: each address takes username, password or passwordFile, token or tokenFile, plainHTTP, caFile, "+
			"keyFile, passphraseFile and knownHostsFile, as strings (plainHTTP: true or false), and nothing else", file)
	}
	out := credentials{}
	for address, l := range raw {
		normal, err := normalAddress(address)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if _, ok := out[normal]; ok {
			return nil, fmt.Errorf("%s: %s stands there twice", file, normal)
		}
		if err := l.check(normal); err != nil {
			return nil, fmt.Errorf("%s: %s: %w", file, normal, err)
		}
		out[normal] = l
	}
	return out, nil
}

// check refuses contradictory fields, and fields that would have no effect.
func (l login) check(address string) error {
	ssh := strings.HasPrefix(address, "ssh:")
	password := l.Password != "" || l.PasswordFile != ""
	token := l.Token != "" || l.TokenFile != ""
	switch {
	case l.Password != "" && l.PasswordFile != "", l.Token != "" && l.TokenFile != "":
		return fmt.Errorf("give the secret, or the file that holds it, and not both")
	case password && token:
		return fmt.Errorf("give a password or a token, and not both")
	case ssh && (password || token || l.Username != "" || l.CAFile != "" || l.PlainHTTP):
		return fmt.Errorf("ssh takes keyFile, passphraseFile and knownHostsFile; the repository's URL has the user")
	case !ssh && (l.KeyFile != "" || l.PassphraseFile != "" || l.KnownHostsFile != ""):
		return fmt.Errorf("keyFile, passphraseFile and knownHostsFile are for ssh")
	case l.PlainHTTP && !strings.HasPrefix(address, "http:"):
		return fmt.Errorf("plainHTTP is for http")
	case l.PassphraseFile != "" && l.KeyFile == "":
		return fmt.Errorf("passphraseFile is for a keyFile")
	}
	return nil
}

// normalAddress returns the canonical form of scheme://host[:port], for comparison. There are no
// patterns: credentials are for one host.
func normalAddress(address string) (string, error) {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
		return "", fmt.Errorf("an address is scheme://host or scheme://host:port, and nothing else")
	}
	return addressOf(u)
}

// addressOf returns scheme, host and port of a URL, without user and path. The port is always set.
func addressOf(u *url.URL) (string, error) {
	defaults := map[string]string{"http": "80", "https": "443", "ssh": "22"}
	port, ok := defaults[u.Scheme]
	if !ok {
		return "", fmt.Errorf("an address begins with http://, https:// or ssh://")
	}
	if u.Port() != "" {
		port = u.Port()
	}
	host := u.Hostname()
	for _, r := range host {
		if r <= ' ' || r >= 0x7f || strings.ContainsRune(`*?\"'`, r) {
			return "", fmt.Errorf("an address names one host, in ASCII")
		}
	}
	if host == "" {
		return "", fmt.Errorf("an address names a host")
	}
	if _, err := netip.ParseAddr(host); err != nil && strings.Contains(host, ":") {
		return "", fmt.Errorf("an address has one port")
	}
	return u.Scheme + "://" + net.JoinHostPort(strings.ToLower(host), port), nil
}

// secret returns the value, or the content of the file without its line end.
func secret(value, file string) (string, error) {
	if file == "" {
		return value, nil
	}
	data, err := readSmall(file)
	if err != nil {
		return "", fmt.Errorf("read a secret: %w", err)
	}
	s := strings.TrimRight(string(data), "\r\n")
	if s == "" {
		return "", fmt.Errorf("%s is empty", file)
	}
	return s, nil
}

// loopback reports whether a host is this machine.
func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// userKnownHosts returns the known_hosts files of ssh that exist.
func userKnownHosts() []string {
	var out []string
	files := []string{"/etc/ssh/ssh_known_hosts"}
	if home, err := os.UserHomeDir(); err == nil {
		files = append([]string{home + "/.ssh/known_hosts"}, files...)
	}
	for _, file := range files {
		if _, err := os.Stat(file); err == nil {
			out = append(out, file)
		}
	}
	return out
}
