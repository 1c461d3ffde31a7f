package rendering

import (
	"github.com/spf13/cobra"

	"github.com/keelson-io/keelson/renderer"
)

// CacheBytes bounds the rendered targets that a command keeps in memory.
const CacheBytes = 256 << 20

// CapabilityFlags set the capabilities of a cluster, for commands that ask no cluster.
type CapabilityFlags struct {
	kubeVersion string
	apiVersions []string
}

// AddFlags adds the flags.
func (f *CapabilityFlags) AddFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.kubeVersion, "kube-version", "",
		"Kubernetes `VERSION` to render for\n(default "+renderer.DefaultCapabilities().KubeVersion+")")
	cmd.Flags().StringSliceVarP(&f.apiVersions, "api-versions", "a", nil,
		"more API `VERSIONS` that the cluster serves,\nas monitoring.coreos.com/v1")
}

// IsSet reports whether a flag has a value.
func (f *CapabilityFlags) IsSet() bool { return f.kubeVersion != "" || len(f.apiVersions) > 0 }

// Capabilities returns the default capabilities, changed by the flags.
func (f *CapabilityFlags) Capabilities() renderer.Capabilities {
	caps := renderer.DefaultCapabilities()
	if f.kubeVersion != "" {
		caps.KubeVersion = f.kubeVersion
	}
	caps.APIVersions = append(caps.APIVersions, f.apiVersions...)
	return caps
}
