package egress

import (
	"net/http"
	"net/netip"
	"net/url"
)

// Check says why a name and port may not be asked at an address.
func (p Policy) Check(name, port string, ip netip.Addr) error {
	return p.check(ip, p.named(name, port))
}

// TransportBy is [Policy.Transport] with proxies that don't come from the environment.
func (p Policy) TransportBy(proxy func(*http.Request) (*url.URL, error)) http.RoundTripper {
	return p.transportBy(proxy)
}
