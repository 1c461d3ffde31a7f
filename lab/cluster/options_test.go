package cluster_test

import (
	"errors"
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
			change: cluster.Change{Nodes: new(257)}, to: standard, err: cluster.ErrOptions,
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
