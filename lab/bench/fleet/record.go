package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/keelson-io/keelson/lab/harness"
)

// record stores the discovery documents and the version of an API server. `lab openapi` stores the
// OpenAPI documents.
func record(ctx context.Context, args []string) error {
	if len(args) != 2 {
		return errors.New("usage: bench-fleet record KUBECONFIG FOLDER")
	}
	config, err := clientcmd.BuildConfigFromFlags("", args[0])
	if err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	for _, name := range []string{"api", "apis", "version"} {
		data, err := client.RESTClient().Get().AbsPath("/"+name).
			SetHeader("Accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json").DoRaw(ctx)
		if err != nil {
			return fmt.Errorf("read /%s: %w", name, err)
		}
		if err := harness.WriteGzip(filepath.Join(args[1], name+".json.gz"), data); err != nil {
			return err
		}
	}
	return nil
}
