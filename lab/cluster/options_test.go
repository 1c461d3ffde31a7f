package cluster_test

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/keelson-io/keelson/lab/cluster"
)

func TestChange(t *testing.T) {
	t.Parallel()
	standard := cluster.Options{Nodes: 3, ServiceCIDR: cluster.DefaultServiceCIDR}
	hub := cluster.Options{ControlPlaneOnly: true, ServiceCIDR: cluster.DefaultServiceCIDR}
	cases := map[string]struct {
		why    string
		change cluster.Change
		to     cluster.Options
		exists bool
		want   cluster.Options
		err    error
	}{
		"Nothing": {why: "up without flags keeps what a cluster has.", to: standard, exists: true, want: standard},
		"MoreNodes": {
			why:    "Nodes come and go while a cluster runs.",
			change: cluster.Change{Nodes: new(5)}, to: standard, exists: true,
			want: cluster.Options{Nodes: 5, ServiceCIDR: cluster.DefaultServiceCIDR},
		},
		"TooManyNodes": {
			why:    "There are so many pod ranges.",
			change: cluster.Change{Nodes: new(1025)}, to: standard, err: cluster.ErrOptions,
		},
		"FewerThanNone": {
			why:    "A typing mistake.",
			change: cluster.Change{Nodes: new(-1)}, to: standard, err: cluster.ErrOptions,
		},
		"Hub": {
			why:    "A control plane only has no nodes, not the default number.",
			change: cluster.Change{ControlPlaneOnly: new(true)}, to: standard, want: hub,
		},
		"HubWithNodes": {
			why:    "What can't be had is refused, not ignored.",
			change: cluster.Change{ControlPlaneOnly: new(true), Nodes: new(2)}, to: standard, err: cluster.ErrOptions,
		},
		"HubBecomesCluster": {
			why:    "Half of a cluster's objects would be missing.",
			change: cluster.Change{ControlPlaneOnly: new(false)}, to: hub, exists: true, err: cluster.ErrOptions,
		},
		"HubAgain": {
			why:    "up can be repeated with the same flags.",
			change: cluster.Change{ControlPlaneOnly: new(true)}, to: hub, exists: true, want: hub,
		},
		"OtherServiceRange": {
			why:    "Services have addresses in the old one.",
			change: cluster.Change{ServiceCIDR: new("10.97.0.0/16")}, to: standard, exists: true, err: cluster.ErrOptions,
		},
		"NoSuchAudit": {
			why:    "There are three levels.",
			change: cluster.Change{Audit: new(cluster.Audit("all"))}, to: standard, err: cluster.ErrOptions,
		},
		"NoServiceRange": {
			why:    "The API server would say so after a minute.",
			change: cluster.Change{ServiceCIDR: new("10.97")}, to: standard, err: cluster.ErrOptions,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := tc.change.Apply(tc.to, tc.exists)
			if !errors.Is(err, tc.err) {
				t.Fatalf("error %v, want %v; %s", err, tc.err, tc.why)
			}
			if tc.err != nil {
				return
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.why, diff)
			}
		})
	}
}

// No two nodes share an address, nor do their pods, whose ranges stay as they were in
// clusters that have fewer nodes; Services have none of them.
func TestAddresses(t *testing.T) {
	t.Parallel()
	services := netip.MustParsePrefix(cluster.DefaultServiceCIDR)
	ranges, nodes := map[netip.Prefix]int{}, map[netip.Addr]int{}
	for i := range cluster.MaxNodes {
		r, at := netip.MustParsePrefix(cluster.PodRange(i)), netip.MustParseAddr(cluster.NodeAddress(i))
		if r.Masked() != r || r.Bits() != 24 || r.Overlaps(services) {
			t.Errorf("node %d: pods in %s", i, r)
		}
		if _, taken := ranges[r]; taken {
			t.Errorf("node %d: pods in %s, as another's", i, r)
		}
		if _, taken := nodes[at]; taken || services.Contains(at) {
			t.Errorf("node %d is at %s, as another", i, at)
		}
		ranges[r], nodes[at] = i, i
	}
	for at, i := range nodes {
		of, err := at.Prefix(24)
		if _, pods := ranges[of]; pods || err != nil {
			t.Errorf("node %d is at %s, among pods: %v", i, at, err)
		}
	}
	for i, want := range map[int]string{0: "10.244.0.0/24", 255: "10.244.255.0/24", 256: "10.246.0.0/24", 1023: "10.248.255.0/24"} {
		if got := cluster.PodRange(i); got != want {
			t.Errorf("node %d: pods in %s, want %s", i, got, want)
		}
	}
}
