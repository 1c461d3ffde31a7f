package pki_test

import (
	"crypto/tls"
	"crypto/x509"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/keelson-io/keelson/lab/pki"
)

func TestIssue(t *testing.T) {
	t.Parallel()
	now := time.Now()
	mine, other := authority(t, now), authority(t, now)
	cases := map[string]struct {
		why     string
		subject pki.Subject
		roots   *pki.Authority
		use     x509.ExtKeyUsage
		host    string
		ok      bool
	}{
		"Server": {
			why: "A server's certificate is good for its address.", subject: pki.Subject{Name: "s", Hosts: []string{"127.0.0.1", "localhost"}},
			roots: mine, use: x509.ExtKeyUsageServerAuth, host: "127.0.0.1", ok: true,
		},
		"OtherHost": {
			why: "And for no other.", subject: pki.Subject{Name: "s", Hosts: []string{"127.0.0.1"}},
			roots: mine, use: x509.ExtKeyUsageServerAuth, host: "example.org",
		},
		"Client": {
			why: "A user's certificate.", subject: pki.Subject{Name: "keelson"},
			roots: mine, use: x509.ExtKeyUsageClientAuth, ok: true,
		},
		"ClientAsServer": {
			why: "A user can't pose as a server.", subject: pki.Subject{Name: "keelson"},
			roots: mine, use: x509.ExtKeyUsageServerAuth,
		},
		"OtherAuthority": {
			why: "A user of one cluster is unknown in another.", subject: pki.Subject{Name: "keelson"},
			roots: other, use: x509.ExtKeyUsageClientAuth,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pair, err := mine.Issue(tc.subject, now)
			if err != nil {
				t.Fatal(err)
			}
			both, err := tls.X509KeyPair(pair.Cert, pair.Key)
			if err != nil {
				t.Fatal(err)
			}
			roots := x509.NewCertPool()
			roots.AppendCertsFromPEM(tc.roots.Cert)
			_, err = both.Leaf.Verify(x509.VerifyOptions{
				Roots: roots, CurrentTime: now, DNSName: tc.host, KeyUsages: []x509.ExtKeyUsage{tc.use},
			})
			if (err == nil) != tc.ok {
				t.Errorf("verify: %v, want ok %t; %s", err, tc.ok, tc.why)
			}
		})
	}
}

func TestKubeconfig(t *testing.T) {
	t.Parallel()
	now := time.Now()
	ca := authority(t, now)
	pair, err := ca.Issue(pki.Subject{Name: "keelson"}, now)
	if err != nil {
		t.Fatal(err)
	}
	data, err := pki.Kubeconfig("a", "https://127.0.0.1:1", "keelson", ca.Cert, pair)
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(data)
	if err != nil {
		t.Fatal(err)
	}
	if config.Host != "https://127.0.0.1:1" || string(config.CertData) != string(pair.Cert) || string(config.CAData) != string(ca.Cert) {
		t.Errorf("not what was put in: %s", config.Host)
	}
}

func authority(t *testing.T, now time.Time) *pki.Authority {
	t.Helper()
	a, err := pki.NewAuthority("test", now)
	if err != nil {
		t.Fatal(err)
	}
	return a
}
