package main

import (
	"context"
	"errors"
	"path/filepath"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/keelson-io/keelson/lab/harness"
	"github.com/keelson-io/keelson/lab/harness/must"
)

// record stores the discovery documents and the version of an API server. `lab openapi` stores the
// OpenAPI documents.
func record(ctx context.Context, args []string) error {
	if len(args) != 2 {
		return errors.New("usage: bench-fleet record KUBECONFIG FOLDER")
	}
	return must.Try(func() {
		config := must.Get(clientcmd.BuildConfigFromFlags("", args[0]))
		client := must.Get(discovery.NewDiscoveryClientForConfig(config)).RESTClient()
		for _, name := range []string{"api", "apis", "version"} {
			data := must.Get(client.Get().AbsPath("/"+name).
				SetHeader("Accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json").DoRaw(ctx))
			must.Do(harness.WriteGzip(filepath.Join(args[1], name+".json.gz"), data))
		}
	})
}
