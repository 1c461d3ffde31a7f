package cluster_test

import (
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/keelson-io/keelson/lab/binaries"
	"github.com/keelson-io/keelson/lab/cluster"
)

// Nothing of a lab may be reached from another machine, and nothing on this
// one without a certificate.
func TestNothingListensBeyondLoopback(t *testing.T) {
	t.Parallel()
	all := cluster.Args("/clusters/a", cluster.Options{ServiceCIDR: cluster.DefaultServiceCIDR})
	listening := 0
	for component, args := range all {
		for _, arg := range args {
			flag, value, _ := strings.Cut(arg, "=")
			switch {
			case strings.HasSuffix(flag, "-urls"):
				u, err := url.Parse(value)
				if err != nil || u.Scheme != "https" || u.Hostname() != "127.0.0.1" {
					t.Errorf("%s listens on %s (%v)", component, value, err)
				}
				listening++
			case flag == "--bind-address":
				if ip := net.ParseIP(value); ip == nil || !ip.IsLoopback() {
					t.Errorf("%s listens on %s", component, value)
				}
				listening++
			case flag == "--secure-port" && component != binaries.APIServer && value != "0":
				t.Errorf("%s listens on port %s", component, value)
			}
		}
	}
	if listening != 5 { // etcd's four and the API server's
		t.Errorf("%d addresses, want 5: does this test still know the flags?", listening)
	}
	for _, want := range []string{"--client-cert-auth", "--peer-client-cert-auth"} {
		if !slices.Contains(all[binaries.Etcd], want) {
			t.Errorf("etcd is open to everyone on the machine: no %s", want)
		}
	}
}

// What a process writes or reads is in the cluster's folder, so that removing
// it removes everything.
func TestFilesStayInTheFolder(t *testing.T) {
	t.Parallel()
	const dir = "/clusters/a"
	for component, args := range cluster.Args(dir, cluster.Options{}) {
		for _, arg := range args {
			_, value, _ := strings.Cut(arg, "=")
			if filepath.IsAbs(value) && !strings.HasPrefix(value, dir+"/") {
				t.Errorf("%s: %s", component, arg)
			}
		}
	}
}

func TestControlPlaneOnly(t *testing.T) {
	t.Parallel()
	all := cluster.Args("/clusters/hub", cluster.Options{ControlPlaneOnly: true})
	if len(all) != 2 || all[binaries.Etcd] == nil || all[binaries.APIServer] == nil {
		t.Errorf("%d components, want etcd and the API server", len(all))
	}
}
