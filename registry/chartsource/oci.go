package chartsource

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/credentials"

	"github.com/keelson-io/keelson/registry/archive"
)

// The media types of a chart's layer: helm's current type, and its older type.
const (
	chartLayer    = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
	chartLayerOld = "application/tar+gzip"
)

// ociChart is one repository of an OCI registry, which holds one chart.
type ociChart struct {
	client     *Client
	url        string // oci://HOST/PATH
	repository *remote.Repository
}

func (c *Client) ociChart(url string) (*ociChart, error) {
	reference := strings.TrimPrefix(url, "oci://")
	r, err := remote.NewRepository(reference)
	if err != nil {
		return nil, fmt.Errorf("%s is not the place of a chart: %w", url, err)
	}
	if r.Reference.Reference != "" {
		return nil, fmt.Errorf("%s must end with the chart's name: its version comes with --version", url)
	}
	client := &auth.Client{
		Client: &http.Client{Transport: c.transport, CheckRedirect: checkRedirect(false)},
		Cache:  auth.NewCache(),
	}
	client.SetUserAgent(c.options.UserAgent)
	if c.registries != nil {
		client.Credential = credentials.Credential(c.registries)
	}
	r.Client, r.PlainHTTP = client, slices.Contains(c.options.PlainHTTP, r.Reference.Host())
	return &ociChart{client: c, url: url, repository: r}, nil
}

// versions returns the versions of all tags. Tags that are not versions are included; newest skips
// them.
func (o *ociChart) versions(ctx context.Context) ([]string, error) {
	var out []string
	pages := 0
	err := o.repository.Tags(ctx, "", func(tags []string) error {
		pages++
		for _, t := range tags {
			out = append(out, versionOf(t))
		}
		if len(out) > maxTags || pages > maxTags {
			return fmt.Errorf("it has more than %d tags", maxTags)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list the versions of %s: %w", o.url, withoutQuery(err))
	}
	return out, nil
}

// find returns the descriptor of a version's .tgz. For a missing version the error is
// [errdef.ErrNotFound].
func (o *ociChart) find(ctx context.Context, version string) (ocispec.Descriptor, error) {
	desc, err := o.findLayer(ctx, version)
	if err != nil {
		return desc, fmt.Errorf("%s %s: %w", o.url, version, withoutQuery(err))
	}
	return desc, nil
}

func (o *ociChart) findLayer(ctx context.Context, version string) (ocispec.Descriptor, error) {
	var none ocispec.Descriptor
	desc, body, err := o.repository.Manifests().FetchReference(ctx, tagOf(version))
	if err != nil {
		return none, err //nolint:wrapcheck // find says where
	}
	defer func() { _ = body.Close() }() // the body was read, or is not needed
	if desc.Size > maxManifest {
		return none, tooLarge("its manifest", maxManifest)
	}
	data, err := content.ReadAll(body, desc)
	if err != nil {
		return none, fmt.Errorf("read its manifest: %w", err)
	}
	var manifest ocispec.Manifest
	if err := json.Unmarshal(data, &manifest); err != nil {
		return none, fmt.Errorf("read its manifest: %w", err)
	}
	var found []ocispec.Descriptor
	for _, layer := range manifest.Layers {
		if layer.MediaType == chartLayer || layer.MediaType == chartLayerOld {
			found = append(found, layer)
		}
	}
	if len(found) != 1 {
		return none, fmt.Errorf("the artifact is not a chart: it has %d layers of type %s, and should have one", len(found), chartLayer)
	}
	if err := found[0].Digest.Validate(); err != nil || found[0].Digest.Algorithm() != digest.SHA256 {
		return none, fmt.Errorf("the digest %q of its chart is no SHA-256", found[0].Digest)
	}
	return found[0], nil
}

// read returns the .tgz with the digest want.
func (o *ociChart) read(ctx context.Context, want string) (data []byte, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("read %s@%s: %w", o.url, want, withoutQuery(err))
		}
	}()
	// The size in the manifest is not used: the response for the blob has its own size.
	desc, body, err := o.repository.Blobs().FetchReference(ctx, want)
	if err != nil {
		return nil, err //nolint:wrapcheck // above
	}
	defer func() { _ = body.Close() }() // the body was read, or is not needed
	if desc.Size > maxArchive {
		return nil, tooLarge("it", maxArchive)
	}
	data, err = io.ReadAll(io.LimitReader(body, maxArchive+1))
	switch {
	case err != nil:
		return nil, err //nolint:wrapcheck // above
	case len(data) > maxArchive:
		return nil, tooLarge("it", maxArchive)
	case archive.Digest(data) != want:
		return nil, fmt.Errorf("what came is %s", archive.Digest(data))
	}
	return data, nil
}

// tagOf and versionOf convert like helm, because a tag can't hold the plus of a version.
func tagOf(version string) string { return strings.ReplaceAll(version, "+", "_") }

func versionOf(tag string) string { return strings.ReplaceAll(tag, "_", "+") }

func notFound(err error) bool {
	status, ok := errors.AsType[*statusError](err)
	return errors.Is(err, errdef.ErrNotFound) || ok && status.code == http.StatusNotFound
}
