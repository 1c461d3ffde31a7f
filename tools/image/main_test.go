package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// build builds the real binary, as the Makefile does.
func build(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "keelson")
	c := exec.CommandContext(t.Context(), "go", "build", "-C", "../..", "-trimpath", "-ldflags", "-X main.version=v9.9.9", "-o", file, ".")
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return file
}

// TestImage pushes an image to a registry and pulls it.
func TestImage(t *testing.T) {
	t.Parallel()
	binary := build(t)
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	ref := strings.TrimPrefix(server.URL, "http://") + "/keelson:v9.9.9"
	folder := filepath.Join(t.TempDir(), "dist", "image")
	args := []string{"--binary", "linux/amd64=" + binary, "--binary", "linux/arm64=" + binary, "--version", "v9.9.9"}
	var first, second bytes.Buffer
	if err := run(t.Context(), append(args, "--layout", folder, "--push", ref), &first); err != nil {
		t.Fatal(err)
	}
	if err := run(t.Context(), append(args, "--layout", folder), &second); err != nil {
		t.Fatal(err)
	}
	if line, _, _ := strings.Cut(first.String(), "\n"); line+"\n" != second.String() {
		t.Errorf("the same binaries made\n%s\nand then\n%s", line, second.String())
	}
	if _, err := layout.FromPath(folder); err != nil {
		t.Error(err)
	}
	_, digest, _ := strings.Cut(strings.TrimSpace(second.String()), "  ")
	if entry := "    tag: v9.9.9\n    digest: " + digest + "\n"; !strings.HasSuffix(first.String(), entry) {
		t.Errorf("images.yaml is to have:\n%s\nand was told:\n%s", entry, first.String())
	}

	parsed, err := name.ParseReference(ref)
	if err != nil {
		t.Fatal(err)
	}
	image, err := remote.Image(parsed, remote.WithContext(t.Context()), remote.WithPlatform(v1.Platform{OS: "linux", Architecture: "arm64"}))
	if err != nil {
		t.Fatal(err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.Architecture != "arm64" || config.Config.User != "65532:65532" || config.Config.Entrypoint[0] != "/usr/bin/keelson" ||
		config.Config.Labels["org.opencontainers.image.version"] != "v9.9.9" {
		t.Errorf("the image is configured as %+v", config)
	}
	root := t.TempDir()
	files := unpack(t, image, root)
	if got := strings.Join(files, " "); got != "tmp usr usr/bin usr/bin/keelson" {
		t.Errorf("there is more in the image than keelson: %s", got)
	}
	if os.Geteuid() != 0 {
		t.Skip("only root can change the root folder, to run what is in the image")
	}
	c := exec.CommandContext(t.Context(), "/usr/bin/keelson", "--version")
	c.Env, c.Dir = config.Config.Env, "/"
	c.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: 65532, Gid: 65532}}
	out, err := c.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "v9.9.9") {
		t.Errorf("keelson --version, in the image: %v\n%s", err, out)
	}
}

// TestUsage: missing and duplicate arguments are reported, and nothing is written.
func TestUsage(t *testing.T) {
	t.Parallel()
	for why, args := range map[string][]string{
		"nothing to put in":   {"--version", "v1", "--layout", "x"},
		"nowhere to put it":   {"--version", "v1", "--binary", "linux/amd64=x"},
		"a platform twice":    {"--version", "v1", "--layout", "x", "--binary", "linux/amd64=x", "--binary", "linux/amd64=y"},
		"a binary that is no": {"--version", "v1", "--layout", "x", "--binary", "linux/amd64=" + filepath.Join(t.TempDir(), "none")},
	} {
		if err := run(t.Context(), args, io.Discard); err == nil {
			t.Errorf("%s: no error", why)
		}
	}
	if _, err := os.Stat("x"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("something was written: %v", err)
	}
}

// unpack unpacks the image into a folder, and returns the paths.
func unpack(t *testing.T, image v1.Image, root string) []string {
	t.Helper()
	content := mutate.Extract(image)
	defer func() {
		if err := content.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := os.Chmod(root, 0o755); err != nil { //nolint:gosec // a root folder
		t.Fatal(err)
	}
	var files []string
	for r := tar.NewReader(content); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, h.Name)
		at := filepath.Join(root, filepath.FromSlash(h.Name)) //nolint:gosec // of an image that was just made
		if h.Typeflag == tar.TypeDir {
			if err := os.Mkdir(at, 0o755); err != nil { //nolint:gosec // as the image has it
				t.Fatal(err)
			}
			continue
		}
		b, err := io.ReadAll(r)
		if err == nil {
			err = os.WriteFile(at, b, 0o755) //nolint:gosec // a program
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
