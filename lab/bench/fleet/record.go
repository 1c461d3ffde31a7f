package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
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
	client, err := rest.UnversionedRESTClientFor(plain(config))
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	for _, name := range []string{"api", "apis", "version"} {
		data, err := client.Get().AbsPath("/"+name).
			SetHeader("Accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json").DoRaw(ctx)
		if err != nil {
			return fmt.Errorf("read /%s: %w", name, err)
		}
		var packed bytes.Buffer
		z, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
		if err == nil {
			_, err = z.Write(data)
		}
		if err = errors.Join(err, z.Close()); err != nil {
			return fmt.Errorf("compress: %w", err)
		}
		if err := os.WriteFile(filepath.Join(args[1], name+".json.gz"), packed.Bytes(), 0o644); err != nil { //nolint:gosec // for everybody
			return fmt.Errorf("write: %w", err)
		}
	}
	return nil
}

// plain returns the settings for requests without a Go type.
func plain(c *rest.Config) *rest.Config {
	c = rest.CopyConfig(c)
	c.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	return c
}
