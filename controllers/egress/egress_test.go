package egress_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/keelson-io/keelson/controllers/egress"
)

// TestCheck: which addresses are asked, by what is listed, the name and port that a URL has,
// and the address that the name leads to.
func TestCheck(t *testing.T) {
	t.Parallel()
	const unlisted, reserved = "--egress of the controller does not list it", "serves credentials"
	cases := map[string]struct {
		why      string
		listed   string
		name, ip string // port 443, unless the name has one
		denied   string // empty: it is asked
	}{
		"Any":              {"Nothing is limited by default.", "", "chat.example", "192.0.2.1", ""},
		"Private":          {"A Prometheus stands in a private network.", "", "prometheus.monitoring.svc", "10.0.0.1", ""},
		"Loopback":         {"In a pod Keelson's own metrics are there, and nothing else.", "", "localhost", "127.0.0.1", ""},
		"Metadata":         {"It gives the machine's credentials to who asks.", "", "169.254.169.254", "169.254.169.254", reserved},
		"MetadataByName":   {"Who owns a name decides where it leads.", "", "chat.example", "169.254.169.254", reserved},
		"ListedName":       {"Also where the name is listed.", "chat.example", "chat.example", "169.254.169.254", reserved},
		"LinkLocal":        {"So do others of these addresses (ECS has 169.254.170.2).", "", "x", "169.254.170.2", reserved},
		"MappedMetadata":   {"It has a second name.", "", "x", "::ffff:169.254.169.254", reserved},
		"Translated":       {"And a third, by NAT64.", "", "x", "64:ff9b::a9fe:a9fe", reserved},
		"TranslatedLocal":  {"A network may translate by a prefix of its own.", "", "x", "64:ff9b:1::a9fe:a9fe", reserved},
		"SixToFour":        {"Or send it through a tunnel,", "", "x", "2002:a9fe:a9fe::1", reserved},
		"Compatible":       {"or take it for what it was long ago.", "", "x", "::169.254.169.254", reserved},
		"Stateless":        {"Or translate it without a state.", "", "x", "::ffff:0:169.254.169.254", reserved},
		"LoopbackV6":       {"It is no IPv4 address, though it looks like one.", "", "x", "::1", ""},
		"SixToFourInRange": {"A tunnel is listed by its own prefix.", "2002::/16", "x", "2002:a00:1::1", ""},
		"Google":           {"Clouds have their metadata in private ranges of IPv6, too.", "", "x", "fd20:ce::254", reserved},
		"Oracle":           {"Each in another.", "", "x", "fd00:c1::a9fe:a9fe", reserved},
		"Scaleway":         {"Each in another.", "", "x", "fd00:42::42", reserved},
		"Akamai":           {"Each in another.", "", "x", "fd00:a9fe:a9fe::1", reserved},
		"Alibaba":          {"Each in another.", "", "x", "fd00:100::100:200", reserved},
		"PrivateV6":        {"The range itself is like any private one.", "", "x", "fd12:3456::1", ""},
		"LinkLocalV6":      {"The same by IPv6, whatever the interface.", "", "x", "fe80::1%eth0", reserved},
		"MetadataV6":       {"AWS has it outside of the link-local addresses.", "", "x", "fd00:ec2::254", reserved},
		"WireServer":       {"Azure does, too.", "", "x", "168.63.129.16", reserved},
		"Unspecified":      {"It is another name of loopback.", "127.0.0.0/8", "x", "0.0.0.0", reserved},
		"Multicast":        {"It is no server.", "", "x", "224.0.0.1", reserved},
		"ListedMetadata":   {"Who lists the address means it.", "169.254.169.254", "x", "169.254.169.254", ""},
		"Unlisted":         {"With a list nothing else is asked.", "10.0.0.0/8", "x", "192.0.2.1", unlisted},
		"InRange":          {"A CIDR lists all of its addresses.", "10.0.0.0/8", "x", "10.9.8.7", ""},
		"MappedInRange":    {"By whatever notation.", "10.0.0.0/8", "x", "::ffff:10.9.8.7", ""},
		"OtherFamily":      {"A range of IPv4 says nothing about IPv6.", "10.0.0.0/8", "x", "2001:db8::1", unlisted},
		"OneOfMany":        {"Entries add up.", "10.0.0.0/8,[2001:db8::1]", "x", "2001:db8::1", ""},
		"Name":             {"A name is enough.", "chat.example", "chat.example", "192.0.2.1", ""},
		"NameCase":         {"Names have no case, and may end with a dot.", "Chat.Example", "CHAT.example.", "192.0.2.1", ""},
		"NamePort":         {"A port limits it.", "chat.example:8443", "chat.example", "192.0.2.1", unlisted},
		"NameRightPort":    {"And is the one.", "chat.example:8443", "chat.example:8443", "192.0.2.1", ""},
		"BelowDomain":      {"A star is for what is below.", "*.example", "a.chat.example", "192.0.2.1", ""},
		"DomainItself":     {"The domain itself is not below it.", "*.chat.example", "chat.example", "192.0.2.1", unlisted},
		"NameIsNoSuffix":   {"It ends like it, and is another one.", "*.chat.example", "evilchat.example", "192.0.2.1", unlisted},
		"AddressNotByName": {"A listed name does not list its address.", "chat.example", "192.0.2.1", "192.0.2.1", unlisted},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := parse(t, c.listed)
			host, port, ok := strings.Cut(c.name, ":")
			if !ok {
				host, port = c.name, "443"
			}
			problem := ""
			if err := p.Check(host, port, netip.MustParseAddr(c.ip)); err != nil {
				problem = err.Error()
			}
			if (c.denied == "") != (problem == "") || !strings.Contains(problem, c.denied) {
				t.Errorf("%s: %q, want %q", c.why, problem, c.denied)
			}
		})
	}
}

func parse(t *testing.T, listed string) egress.Policy {
	t.Helper()
	var list []string
	if listed != "" {
		list = strings.Split(listed, ",")
	}
	p, err := egress.Parse(list)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestParse: what is not understood is refused: as a list that names nothing it would deny
// everything, and as one that is left out it would allow everything.
func TestParse(t *testing.T) {
	t.Parallel()
	cases := map[string]struct{ entry, problem string }{
		"Empty":      {"", "is no HOST"},
		"Star":       {"*", "is no HOST"},
		"StarInside": {"a.*.example", "is no HOST"},
		"URL":        {"https://chat.example", "has no port that is a number"},
		"Path":       {"chat.example/x", "is no HOST"},
		"PortName":   {"chat.example:https", "has no port that is a number"},
		"PortZero":   {"chat.example:0", "has no port that is a number"},
		"PortLarge":  {"chat.example:65536", "has no port that is a number"},
		"NoPort":     {"chat.example:", "has no port that is a number"},
		"HostBits":   {"10.0.0.1/8", "write 10.0.0.0/8"},
		"BadCIDR":    {"10.0.0.0/33", "is no HOST"},
		"Space":      {"chat.example other.example", "is no HOST"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := egress.Parse([]string{c.entry})
			if (err == nil) != (c.problem == "") || err != nil && !strings.Contains(err.Error(), c.problem) {
				t.Errorf("%v, want %q", err, c.problem)
			}
		})
	}
}

// TestTransport: the policy counts for the address that is connected to, at every request,
// and an error says nothing that was answered.
func TestTransport(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/away" {
			http.Redirect(w, r, "http://169.254.169.254/", http.StatusFound)
		}
	}))
	t.Cleanup(server.Close)
	banner := listen(t, func(c net.Conn) { _, _ = io.WriteString(c, "SSH-2.0-secret\r\n") })
	// It has read the request: what a client reports of a connection that ends before depends
	// on how much it had sent.
	silent := listen(t, func(c net.Conn) { _, _ = http.ReadRequest(bufio.NewReader(c)) })
	reset := listen(t, func(c net.Conn) {
		if tcp, ok := c.(*net.TCPConn); ok {
			_, _ = http.ReadRequest(bufio.NewReader(c))
			_ = tcp.SetLinger(0)
		}
	})
	closed := listen(t, func(net.Conn) {})
	_ = closed.Close()
	untrusted := httptest.NewUnstartedServer(http.NotFoundHandler())
	untrusted.Config.ErrorLog = log.New(io.Discard, "", 0)
	untrusted.StartTLS()
	t.Cleanup(untrusted.Close)
	at := func(l net.Listener) string { return "http://" + l.Addr().String() }

	cases := map[string]struct {
		why, listed, url string
		answer           string // a status, or why there is none
	}{
		"OK":          {"It is allowed.", "", server.URL, "200"},
		"Redirect":    {"Where the client follows none, the redirect is the answer.", "", server.URL + "/away", "302"},
		"Denied":      {"It is not.", "192.0.2.0/24", server.URL, "--egress of the controller does not list it"},
		"Metadata":    {"No connection is tried.", "", "http://169.254.169.254/", "serves credentials"},
		"Unspecified": {"The connection is judged, whatever the URL says.", "", strings.Replace(server.URL, "127.0.0.1", "0.0.0.0", 1), "serves credentials"},
		"Banner":      {"What is no HTTP would tell what it is.", "", at(banner), "the connection failed"},
		"Silent":      {"It says nothing.", "", at(silent), "it closed the connection"},
		"Reset":       {"A reset is an end, too.", "", at(reset), "it closed the connection"},
		"Closed":      {"No server listens.", "", at(closed), "connection refused"},
		"Untrusted":   {"A certificate names what it is for.", "", untrusted.URL, "its certificate can't be trusted"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := http.Client{Transport: parse(t, c.listed).Transport(), CheckRedirect: egress.StayThere}
			t.Cleanup(client.CloseIdleConnections)
			if got := get(t, &client, c.url); !strings.Contains(got, c.answer) || strings.Contains(got, "secret") {
				t.Errorf("%s: %q, want %q", c.why, got, c.answer)
			}
		})
	}
}

func listen(t *testing.T, answer func(net.Conn)) net.Listener {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			answer(c)
			_ = c.Close()
		}
	}()
	return l
}

func get(t *testing.T, client *http.Client, url string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := client.Do(request)
	if err != nil {
		return egress.Failure(err, time.Second)
	}
	_ = answer.Body.Close()
	return fmt.Sprint(answer.StatusCode)
}

// TestProxy: a proxy resolves names, so that its requests are judged by what the URL says.
func TestProxy(t *testing.T) {
	t.Parallel()
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }))
	t.Cleanup(proxy.Close)
	through, err := url.Parse(proxy.URL)
	if err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct{ why, listed, url, answer string }{
		"Any":      {"Nothing is limited; the proxy itself may stand anywhere.", "", "http://chat.example/", "418"},
		"Metadata": {"A reserved address isn't asked by way of a proxy either.", "", "http://169.254.169.254/", "serves credentials"},
		"Decimal":  {"Nor by a number that a resolver takes for it,", "", "http://2852039166/", "serves credentials"},
		"Hex":      {"in hexadecimal,", "", "http://0xa9fea9fe/", "serves credentials"},
		"Octal":    {"in octal,", "", "http://0251.0376.0251.0376/", "serves credentials"},
		"Short":    {"with fewer parts,", "", "http://169.254.43518/", "serves credentials"},
		"Dot":      {"with a dot at its end,", "", "http://169.254.169.254./", "serves credentials"},
		"Cloud":    {"or by the name that the cloud has for it.", "", "http://Metadata.google.internal./", "serves credentials"},
		"Named":    {"An administrator who lists the name means it.", "metadata.google.internal", "http://metadata.google.internal/", "418"},
		"Digits":   {"A name may have digits elsewhere.", "", "http://7.chat.example/", "418"},
		"Listed":   {"By the port that the scheme has.", "chat.example:80", "http://chat.example/", "418"},
		"Unlisted": {"A name that is not listed can't be judged by its address.", "10.0.0.0/8", "http://chat.example/", "does not list it"},
		"InRange":  {"An address can.", "10.0.0.0/8", "http://10.1.2.3/", "418"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := http.Client{Transport: parse(t, c.listed).TransportBy(http.ProxyURL(through)), CheckRedirect: egress.StayThere}
			t.Cleanup(client.CloseIdleConnections)
			if got := get(t, &client, c.url); !strings.Contains(got, c.answer) {
				t.Errorf("%s: %q, want %q", c.why, got, c.answer)
			}
		})
	}
}

// TestFailure: what is not known is not repeated.
func TestFailure(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		err  error
		want string
	}{
		"Denied":   {&url.Error{Err: &egress.DeniedError{Problem: "no"}}, "no"},
		"Name":     {&net.DNSError{Name: "secret"}, "its name can't be resolved"},
		"Deadline": {context.DeadlineExceeded, "it takes longer than 1s"},
		"Timeout":  {&net.OpError{Op: "dial", Err: timeout{}}, "it takes longer than 1s"},
		"Ended":    {context.Canceled, "this process ends"},
		"Cut":      {io.ErrUnexpectedEOF, "it closed the connection"},
		"Other":    {errors.New("secret"), "the connection failed"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := egress.Failure(c.err, time.Second); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

type timeout struct{}

func (timeout) Error() string { return "secret" }
func (timeout) Timeout() bool { return true }
