// Command image builds a container image of keelson, or of another program of this repository, without a
// container engine. The image contains only the static binary and a folder for temporary files, and runs
// as non-root. `make image` and `make reload-agent-image` run it. Equal binaries give an equal digest.
package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// user is the conventional UID and GID of images that have no user of their own.
const user = "65532:65532"

// program is what an image runs.
type program struct{ name, version string }

// path returns the path of the binary in the image.
func (p program) path() string { return "usr/bin/" + p.name }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// platforms holds the values of the flags --binary OS/ARCH=FILE.
type platforms map[string]string

func (p platforms) String() string { return "" }

// Set implements [flag.Value].
func (p platforms) Set(text string) error {
	platform, file, ok := strings.Cut(text, "=")
	if _, err := v1.ParsePlatform(platform); err != nil || !ok || file == "" || p[platform] != "" {
		return errors.New("it takes OS/ARCH=FILE, and each platform once")
	}
	p[platform] = file
	return nil
}

func run(ctx context.Context, args []string, out io.Writer) error {
	binaries := platforms{}
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // the returned error includes it
	flags.Var(binaries, "binary", "OS/ARCH=FILE")
	folder := flags.String("layout", "", "the OCI layout to write")
	push := flags.String("push", "", "REGISTRY/NAME:TAG to push to; credentials as docker has them")
	of := program{}
	flags.StringVar(&of.name, "program", "keelson", "name of the program")
	flags.StringVar(&of.version, "version", "", "of the binaries")
	if err := flags.Parse(args); err != nil {
		return fmt.Errorf("usage: %w", err)
	}
	if flags.NArg() > 0 || len(binaries) == 0 || of.version == "" || of.name == "" || *folder == "" && *push == "" {
		return errors.New("usage: image --binary OS/ARCH=FILE… --version VERSION [--program NAME] [--layout FOLDER] [--push REGISTRY/NAME:TAG]")
	}
	index, err := makeIndex(binaries, of)
	if err != nil {
		return err
	}
	digest, err := index.Digest()
	if err != nil {
		return fmt.Errorf("digest: %w", err)
	}
	if *folder != "" {
		if err := writeLayout(index, *folder, of.version); err != nil {
			return err
		}
		fmt.Fprintf(out, "%s  %s\n", *folder, digest)
	}
	if *push == "" {
		return nil
	}
	ref, err := name.ParseReference(*push)
	if err != nil {
		return fmt.Errorf("--push: %w", err)
	}
	if err := remote.WriteIndex(ref, index, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
		return fmt.Errorf("push %s: %w", ref, err)
	}
	fmt.Fprintf(out, "%s@%s\n", ref.Context(), digest)
	fmt.Fprintf(out, "\nFor images.yaml of the components, which then run these binaries alone:\n\n  %s:\n    repository: %s\n    tag: %s\n    digest: %s\n",
		of.name, ref.Context(), ref.Identifier(), digest)
	return nil
}

// writeLayout replaces the content of the folder.
func writeLayout(index v1.ImageIndex, folder, version string) error {
	if err := os.RemoveAll(folder); err != nil {
		return fmt.Errorf("write %s: %w", folder, err)
	}
	if err := os.MkdirAll(filepath.Dir(folder), 0o750); err != nil {
		return fmt.Errorf("write %s: %w", folder, err)
	}
	at, err := layout.Write(folder, empty.Index)
	if err == nil {
		err = at.AppendIndex(index, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": version}))
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", folder, err)
	}
	return nil
}

func makeIndex(binaries platforms, of program) (v1.ImageIndex, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	var names []string
	for name := range binaries {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		platform, err := v1.ParsePlatform(name)
		if err != nil {
			return nil, fmt.Errorf("platform %s: %w", name, err)
		}
		image, err := makeImage(binaries[name], *platform, of)
		if err != nil {
			return nil, err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: platform}})
	}
	return index, nil
}

func makeImage(file string, platform v1.Platform, of program) (v1.Image, error) {
	content, err := layer(file, of.path())
	if err != nil {
		return nil, err
	}
	one, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil },
		tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, fmt.Errorf("make a layer of %s: %w", file, err)
	}
	image, err := mutate.AppendLayers(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON), one)
	if err != nil {
		return nil, fmt.Errorf("make an image of %s: %w", file, err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("make an image of %s: %w", file, err)
	}
	image, err = mutate.ConfigFile(image, configOf(config.DeepCopy(), platform, of))
	if err != nil {
		return nil, fmt.Errorf("make an image of %s: %w", file, err)
	}
	return image, nil
}

// configOf sets how a container of the image runs.
func configOf(config *v1.ConfigFile, platform v1.Platform, of program) *v1.ConfigFile {
	config.OS, config.Architecture, config.Variant = platform.OS, platform.Architecture, platform.Variant
	config.Created = v1.Time{Time: time.Unix(0, 0).UTC()} // else the digest would depend on the time of the build
	config.Config = v1.Config{
		User: user, Entrypoint: []string{"/" + of.path()}, WorkingDir: "/",
		Env: []string{"PATH=/usr/bin", "HOME=/tmp"},
		Labels: map[string]string{
			"org.opencontainers.image.title":   of.name,
			"org.opencontainers.image.version": of.version,
		},
	}
	return config
}

// layer returns the file system as tar: the binary at a path, and a folder for temporary files.
func layer(file, path string) ([]byte, error) {
	binary, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the binary: %w", err)
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range []tar.Header{
		{Typeflag: tar.TypeDir, Name: "tmp/", Mode: 0o1777},
		{Typeflag: tar.TypeDir, Name: "usr/", Mode: 0o755},
		{Typeflag: tar.TypeDir, Name: "usr/bin/", Mode: 0o755},
		{Typeflag: tar.TypeReg, Name: path, Mode: 0o755, Size: int64(len(binary))},
	} {
		h.Format, h.ModTime = tar.FormatPAX, time.Unix(0, 0)
		if err := w.WriteHeader(&h); err != nil {
			return nil, fmt.Errorf("pack %s: %w", h.Name, err)
		}
	}
	if _, err := w.Write(binary); err != nil {
		return nil, fmt.Errorf("pack %s: %w", path, err)
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("pack %s: %w", path, err)
	}
	return b.Bytes(), nil
}
