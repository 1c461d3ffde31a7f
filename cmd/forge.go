package cmd

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/keelson-io/keelson/cmd/internal/cli"
	"github.com/keelson-io/keelson/controllers/forge"
)

// forgeOptions locate the pull requests.
type forgeOptions struct {
	kind, url, repository, tokenFile string
	memory                           resource.QuantityValue // of one preview
}

// add adds the flags. The help text starts with of, followed by the name of the forge.
func (o *forgeOptions) add(f *pflag.FlagSet, of string) {
	f.StringVar(&o.kind, "forge", "", of+" a `FORGE`: gitea (Forgejo, too),\ngithub or gitlab; empty: none")
	f.StringVar(&o.url, "forge-url", "", "`URL` of the forge (default: github.com or gitlab.com)")
	f.StringVar(&o.repository, "forge-repository", "", "`OWNER/NAME` of the fleet repository on the forge")
	f.StringVar(&o.tokenFile, "forge-token-file", "", "`FILE` of a token that may read the repository, write comments and pull\nrequests, and set commit statuses; it is read again for each request")
}

// addMemory adds the flag for previews.
func (o *forgeOptions) addMemory(f *pflag.FlagSet) {
	o.memory = resource.QuantityValue{Quantity: resource.MustParse("512Mi")}
	f.Var(&o.memory, "preview-memory", "`BYTES` of memory that the preview of one pull request may take")
}

func (o *forgeOptions) checkMemory() error {
	if least := resource.MustParse(leastPreviewMemory); o.memory.Cmp(least) < 0 {
		return cli.Usagef("--preview-memory takes at least %s, and not %s", least.String(), o.memory.String())
	}
	return nil
}

func (o *forgeOptions) check() error {
	switch {
	case o.kind == "" && (o.url != "" || o.repository != "" || o.tokenFile != ""):
		return cli.Usagef("--forge-url, --forge-repository and --forge-token-file are for a forge: give --forge, too")
	case o.kind == "":
		return nil
	case o.repository == "":
		return cli.Usagef("--forge needs --forge-repository OWNER/NAME")
	case o.tokenFile == "":
		return cli.Usagef("--forge needs --forge-token-file: a forge takes nothing without a token")
	}
	return cli.OneOf("--forge", o.kind, forge.Kinds()...)
}

// open connects to a forge; nil without --forge.
func (o *forgeOptions) open(inv *cli.Invocation, wrap func(http.RoundTripper) http.RoundTripper, r prometheus.Registerer) (forge.Forge, error) {
	if o.kind == "" {
		return nil, nil //nolint:nilnil // nothing was asked for
	}
	f, err := forge.Open(forge.Options{
		Kind: o.kind, URL: o.url, Repository: o.repository, TokenFile: o.tokenFile,
		Hide: inv.Env.Redactor.Hide, Wrap: wrap, Now: inv.Env.Now, Registry: r,
	})
	if err != nil {
		return nil, cli.Usagef("--forge: %w", err)
	}
	return f, nil
}
