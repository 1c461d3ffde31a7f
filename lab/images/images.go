// Package images makes the lab's container images and pushes them to a registry. Each
// image contains one static program and nothing else. The same program gives the same
// digests.
package images

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// Image describes an image that [Push] makes.
type Image struct {
	Name    string   // with a tag
	Program string   // path of the only file in the image
	Args    []string // arguments of the program
	Version string   // value of the environment variable VERSION
}

// Pause is the image that holds a pod's namespaces.
const Pause = "pause:1"

// Tests returns the images that contain the command testimage; program is its path. They
// are Pause, web and slow servers in versions v1 to v5, configured:v1 and crash:v1. web:v5-again is
// web:v5 under another name.
func Tests(program string) []Image {
	all := []Image{
		{Name: Pause, Program: program, Args: []string{"pause"}},
		{Name: "crash:v1", Program: program, Args: []string{"crash"}},
		{Name: "configured:v1", Program: program, Args: []string{"configured"}},
		{Name: "web:v5-again", Program: program, Args: []string{"web"}, Version: "v5"},
	}
	for _, version := range []string{"v1", "v2", "v3", "v4", "v5"} {
		for _, job := range []string{"web", "slow"} {
			all = append(all, Image{Name: job + ":" + version, Program: program, Args: []string{job}, Version: version})
		}
	}
	return all
}

// user is the user and group, not root, that the images run as.
const user = "65532:65532"

// Push makes images and pushes them to a registry (HOST:PORT) over plain HTTP.
func Push(ctx context.Context, registry string, all ...Image) error {
	layers := map[string]v1.Layer{}
	for _, image := range all {
		layer := layers[image.Program]
		if layer == nil {
			var err error
			if layer, err = layerOf(image.Program); err != nil {
				return err
			}
			layers[image.Program] = layer
		}
		made, err := assemble(image, layer)
		if err != nil {
			return fmt.Errorf("make the image %s: %w", image.Name, err)
		}
		ref, err := name.ParseReference(registry+"/"+image.Name, name.Insecure)
		if err != nil {
			return fmt.Errorf("push the image %s: %w", image.Name, err)
		}
		if err := remote.Write(ref, made, remote.WithContext(ctx)); err != nil {
			return fmt.Errorf("push the image %s: %w", image.Name, err)
		}
	}
	return nil
}

func assemble(image Image, layer v1.Layer) (v1.Image, error) {
	made, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{
		OS:           "linux",
		Architecture: runtime.GOARCH,
		RootFS:       v1.RootFS{Type: "layers"},
		Config: v1.Config{
			Entrypoint: append([]string{"/" + filepath.Base(image.Program)}, image.Args...),
			Env:        []string{"VERSION=" + image.Version},
			User:       user,
		},
	})
	if err != nil {
		return nil, fmt.Errorf("configure it: %w", err)
	}
	if made, err = mutate.AppendLayers(made, layer); err != nil {
		return nil, fmt.Errorf("add its layer: %w", err)
	}
	return made, nil
}

// layerOf returns a layer with one program in its root folder.
func layerOf(program string) (v1.Layer, error) {
	data, err := os.ReadFile(program)
	if err != nil {
		return nil, fmt.Errorf("read what the images are made of: %w", err)
	}
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	err = w.WriteHeader(&tar.Header{Name: filepath.Base(program), Typeflag: tar.TypeReg, Mode: 0o555, Size: int64(len(data))})
	if err == nil {
		_, err = w.Write(data)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		return nil, fmt.Errorf("make a layer: %w", err)
	}
	made, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(layer.Bytes())), nil })
	if err != nil {
		return nil, fmt.Errorf("make a layer: %w", err)
	}
	return made, nil
}
