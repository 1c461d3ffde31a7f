// Package egress sends the HTTP requests of files in git: checks of pipelines, and notifications.
// Authors of such files have no access to the hub's network, but Keelson has. So addresses that
// serve credentials are refused unless an administrator lists the address. An administrator can
// restrict all other addresses. Errors contain nothing of a response.
package egress

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	// dialTimeout bounds a connection, and then the TLS handshake.
	dialTimeout = 5 * time.Second
	// headerBytes bounds the headers of an answer.
	headerBytes = 64 << 10
)

// reserved returns the addresses that serve credentials to any client, or are no single server.
func reserved() []netip.Prefix {
	return prefixes(
		"169.254.0.0/16", "fe80::/10", // link-local (RFC 3927, 4291): the metadata of AWS, Azure, Google and other clouds
		// Instance metadata by IPv6, in ranges that are private otherwise.
		"fd00:ec2::/32",                               // AWS
		"fd20:ce::254/128",                            // Google Cloud
		"fd00:c1::/32",                                // Oracle Cloud
		"fd00:42::42/128",                             // Scaleway
		"fd00:a9fe:a9fe::/48",                         // Akamai
		"fd00:100::100:200/128", "100.100.100.200/32", // Alibaba Cloud
		"168.63.129.16/32",    // Azure: WireServer
		"192.0.0.192/32",      // Oracle Cloud: instance metadata of its first generation
		"0.0.0.0/8", "::/128", // unspecified: another name of loopback
		"224.0.0.0/4", "ff00::/8", "255.255.255.255/32", // multicast and broadcast
	)
}

// embedding is a range of IPv6 addresses that lead to the IPv4 address in four of their bytes.
type embedding struct {
	netip.Prefix
	at int // index of the first of these bytes
}

func embeddings() []embedding {
	in := func(text string, at int) embedding { return embedding{netip.MustParsePrefix(text), at} }
	return []embedding{
		in("64:ff9b::/96", 12),    // NAT64 (RFC 6052)
		in("64:ff9b:1::/48", 12),  // NAT64 of a local network (RFC 8215), in its usual form
		in("2002::/16", 2),        // 6to4 (RFC 3056)
		in("::ffff:0:0:0/96", 12), // SIIT (RFC 2765)
		in("::/96", 12),           // IPv4-compatible (RFC 4291)
	}
}

// plain returns the IPv4 address that an address stands for, or the address itself.
func plain(ip netip.Addr) netip.Addr {
	ip = ip.Unmap().WithZone("")
	if !ip.Is6() || ip == netip.IPv6Unspecified() || ip == netip.IPv6Loopback() {
		return ip
	}
	for _, e := range embeddings() {
		if e.Contains(ip) {
			b := ip.As16()
			return netip.AddrFrom4([4]byte(b[e.at:]))
		}
	}
	return ip
}

func prefixes(texts ...string) []netip.Prefix {
	out := make([]netip.Prefix, len(texts))
	for i, text := range texts {
		out[i] = netip.MustParsePrefix(text)
	}
	return out
}

// DeniedError reports that a request was not sent, because its address is not allowed.
type DeniedError struct{ Problem string }

// Error implements error.
func (e *DeniedError) Error() string { return e.Problem }

// Policy decides where requests may go. The zero Policy allows every address that is not reserved.
type Policy struct {
	hosts  []host
	ranges []netip.Prefix
}

// host is a name, or all names below it, with an optional port.
type host struct {
	name  string
	below bool
	port  string
}

// Everywhere allows all addresses, including reserved ones: for a person who sends from their own
// machine.
func Everywhere() Policy { return Policy{ranges: prefixes("0.0.0.0/0", "::/0")} }

// Parse reads the allowed targets: a HOST, *.DOMAIN for all names below it, an IP address or a
// CIDR. A host may have a :PORT. An empty list allows every address that is not reserved. A
// reserved address is allowed only by an address or a CIDR, whatever name leads there. The error
// names an invalid target.
func Parse(allowed []string) (Policy, error) {
	p := Policy{}
	for _, text := range allowed {
		if prefix, err := netip.ParsePrefix(text); err == nil {
			if prefix != prefix.Masked() {
				return p, fmt.Errorf("%s is no CIDR: write %s", text, prefix.Masked())
			}
			p.ranges = append(p.ranges, prefix)
			continue
		}
		if ip, err := netip.ParseAddr(strings.Trim(text, "[]")); err == nil {
			p.ranges = append(p.ranges, netip.PrefixFrom(ip.Unmap(), ip.Unmap().BitLen()))
			continue
		}
		h, err := parseHost(text)
		if err != nil {
			return p, err
		}
		p.hosts = append(p.hosts, h)
	}
	return p, nil
}

func parseHost(text string) (host, error) {
	h := host{name: strings.ToLower(text)}
	h.name, h.below = strings.CutPrefix(h.name, "*.")
	if name, port, ok := strings.Cut(h.name, ":"); ok {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return h, fmt.Errorf("%q has no port that is a number from 1 to 65535", text)
		}
		h.name, h.port = name, port
	}
	h.name = strings.TrimSuffix(h.name, ".")
	valid := func(r rune) bool {
		return r == '-' || r == '_' || r == '.' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z'
	}
	if h.name == "" || strings.ContainsFunc(h.name, func(r rune) bool { return !valid(r) }) {
		return h, fmt.Errorf("%q is no HOST, HOST:PORT, *.DOMAIN, IP address or CIDR", text)
	}
	return h, nil
}

// named reports whether a name is allowed, for all its addresses that are not reserved.
func (p Policy) named(name, port string) bool {
	name = strings.TrimSuffix(strings.ToLower(name), ".")
	return slices.ContainsFunc(p.hosts, func(h host) bool {
		return (h.port == "" || h.port == port) && (name == h.name && !h.below || h.below && strings.HasSuffix(name, "."+h.name))
	})
}

// check returns a [*DeniedError] if an address is not allowed. named means that its name is
// allowed.
func (p Policy) check(ip netip.Addr, named bool) error {
	stands, ip := plain(ip), ip.Unmap().WithZone("")
	in := func(r netip.Prefix) bool { return r.Contains(ip) || r.Contains(stands) }
	switch {
	case slices.ContainsFunc(p.ranges, in):
		return nil
	case slices.ContainsFunc(reserved(), in):
		return &DeniedError{"its address serves credentials, or is not the address of a single server: no request is sent there unless --egress lists the address"}
	}
	return p.listed(named)
}

// listed is [Policy.check] by the name alone.
func (p Policy) listed(named bool) error {
	if named || len(p.hosts) == 0 && len(p.ranges) == 0 {
		return nil
	}
	return &DeniedError{"--egress of the controller does not list it: an administrator has to add its name or address there"}
}

// Transport sends requests that the policy allows; else its error is a [*DeniedError]. It bounds
// connections and headers. The caller must bound the time and the size of a response. Proxies of
// the environment are used (HTTPS_PROXY, NO_PROXY).
func (p Policy) Transport() http.RoundTripper { return p.transportBy(http.ProxyFromEnvironment) }

func (p Policy) transportBy(proxy func(*http.Request) (*url.URL, error)) http.RoundTripper {
	toProxy := net.Dialer{Timeout: dialTimeout} // the administrator chose the proxy
	return &transport{policy: p, proxy: proxy, guarded: newTransport(nil, p.dial), proxied: newTransport(proxy, toProxy.DialContext)}
}

func newTransport(proxy func(*http.Request) (*url.URL, error), dial func(context.Context, string, string) (net.Conn, error)) *http.Transport {
	return &http.Transport{
		Proxy:                  proxy,
		DialContext:            dial,
		TLSHandshakeTimeout:    dialTimeout,
		MaxResponseHeaderBytes: headerBytes,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12},
		IdleConnTimeout:        time.Minute,
		ForceAttemptHTTP2:      true,
	}
}

// dial checks the address to which a name resolves now, and connects to no other address.
func (p Policy) dial(ctx context.Context, network, address string) (net.Conn, error) {
	name, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}
	named := p.named(name, port)
	d := net.Dialer{Timeout: dialTimeout, ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if err != nil {
			return &DeniedError{"its address can't be read"}
		}
		return p.check(at.Addr(), named)
	}}
	return d.DialContext(ctx, network, address) //nolint:wrapcheck // as a net.Dialer
}

type transport struct {
	policy           Policy
	proxy            func(*http.Request) (*url.URL, error)
	guarded, proxied *http.Transport
}

// RoundTrip implements [http.RoundTripper].
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	proxy, err := t.proxy(r)
	if err == nil && proxy == nil {
		return t.guarded.RoundTrip(r) //nolint:wrapcheck // a transport passes on what it gets
	}
	if err == nil {
		err = t.policy.throughProxy(r.URL)
	}
	if err != nil {
		if r.Body != nil {
			_ = r.Body.Close() // the RoundTripper contract requires it; closing only ends a read
		}
		return nil, err
	}
	return t.proxied.RoundTrip(r) //nolint:wrapcheck // as above
}

// throughProxy checks the target of a request through a proxy. The proxy resolves names, and
// Keelson does not, so a name that is not listed can't be checked by its address.
func (p Policy) throughProxy(u *url.URL) error {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	name := strings.TrimRight(strings.ToLower(u.Hostname()), ".")
	named := p.named(name, port)
	if ip, err := netip.ParseAddr(name); err == nil {
		return p.check(ip, named)
	}
	if !named && (numeric(name) || metadataName(name)) {
		return &DeniedError{"its name is one of an address that serves credentials, or may be: nothing is asked there, unless --egress lists the name"}
	}
	return p.listed(named)
}

// numeric reports whether a resolver may read a name as an IPv4 address in another form, such as
// 0xa9fea9fe, 2852039166 or 0251.0376.0251.0376. No top-level domain begins with a digit (RFC 3696,
// section 2).
func numeric(name string) bool {
	last := name[strings.LastIndexByte(name, '.')+1:]
	return last != "" && last[0] >= '0' && last[0] <= '9'
}

// metadataName reports whether a name leads to metadata with the resolver of a cloud.
func metadataName(name string) bool {
	return slices.Contains([]string{"metadata", "metadata.google.internal", "instance-data", "instance-data.ec2.internal", "metadata.tencentyun.com"}, name)
}

// CloseIdleConnections closes idle connections like a [http.Transport].
func (t *transport) CloseIdleConnections() {
	t.guarded.CloseIdleConnections()
	t.proxied.CloseIdleConnections()
}

// StayThere stops a client from following redirects: it returns the redirect as the response.
func StayThere(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
