// Command apidocs writes the reference of the API: the kinds of files in a fleet repository, and
// the custom resources. It reads the Go source of the types and takes each text from a comment.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "Usage: apidocs [ROOT]\n\nWrites docs/reference/files.md, crds.md and workload-kinds.md of a repository from its folder api/.\nExit codes: 0 written, 1 a comment is missing, or a file can't be read or written.")
		flag.PrintDefaults()
	}
	flag.Parse()
	root := "."
	if flag.NArg() > 0 {
		root = flag.Arg(0)
	}
	if err := run(root); err != nil {
		fmt.Fprintln(os.Stderr, "apidocs:", err)
		os.Exit(1)
	}
}

// run writes all pages of the repository at root.
func run(root string) error {
	own, err := readPackage(filepath.Join(root, "api", "v1alpha1"))
	if err != nil {
		return err
	}
	workloads, err := readPackage(filepath.Join(root, "api", "apps", "v1beta1"))
	if err != nil {
		return err
	}
	for name, page := range map[string]func() (string, error){
		"files.md":          func() (string, error) { return filesPage(own) },
		"crds.md":           func() (string, error) { return resourcesPage(own) },
		"workload-kinds.md": func() (string, error) { return workloadsPage(workloads) },
	} {
		text, err := page()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		file := filepath.Join(root, "docs", "reference", name)
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil { //nolint:gosec // documentation
			return fmt.Errorf("page: %w", err)
		}
	}
	return nil
}

const made = "<!-- Made by `make generate` from the comments in %s. Change them there. -->\n"

// filesPage describes each kind of file, and the message of a notification's webhook.
func filesPage(p *apiPackage) (string, error) {
	w := newWriter(p, true)
	w.printf("# Files of a fleet repository\n\n"+made+`
Users write these files in git. [Settings](settings.md) has the flags of the program, and [custom resources](crds.md)
what Keelson writes into the hub.

Each file is one YAML document. [Limits](limits.md#fleet-repository) has its largest size. It begins with two fields
that the tables below leave out:

`+"```yaml"+`
apiVersion: keelson.io/v1alpha1
kind: Component        # the heading of a section below
`+"```"+`

A name is that of the file or folder, and stands in no field. An unknown key, a missing required key and a value of
another type are errors of their line: `+"`keelson validate`"+` lists them. YAML anchors, aliases and merge keys are
refused. A duration has a unit, such as `+"`90s`, `5m` or `24h`"+`. A time is in RFC 3339, such as
`+"`2026-11-09T00:00:00+01:00`"+`.

| Kind | File |
|---|---|
`, "`api/v1alpha1`")
	kinds := p.fileKinds()
	for _, kind := range kinds {
		w.printf("| [%s](#%s) | `%s` |\n", kind.name, anchor(kind.name), kind.path)
	}
	for _, kind := range kinds {
		w.kind(kind.name)
	}
	w.kind("Message")
	return w.text()
}

// resourcesPage describes the custom resources of keelson.io, with the labels of objects.
func resourcesPage(p *apiPackage) (string, error) {
	w := newWriter(p, false)
	w.printf("# Custom resources\n\n"+made+`
The controller writes these objects into the hub. They hold status only: what should run is read from
[files in git](files.md). [Statuses](statuses.md) says what each value means, and what to do about it. The CRDs are in
`+"[`components/keelson/template/crds`](../../components/keelson/template/crds)"+`.
`, "`api/v1alpha1`")
	for _, kind := range p.rootKinds() {
		w.kind(kind)
	}
	w.constants("Labels and annotations", "Label", "Annotation")
	w.constants("Field managers and names", "FieldManager", "ProbeManager", "WorkloadManager", "DeploymentManager", "EpochManager", "Namespace", "LeasePrefix")
	return w.text()
}

// workloadsPage describes the workloads of apps.kruise.io.
func workloadsPage(p *apiPackage) (string, error) {
	w := newWriter(p, false)
	w.printf("# Kinds of workloads\n\n"+made+`
`+"`keelson workloads`"+` runs these kinds of `+"`apps.kruise.io/v1beta1`"+`. They have the fields of OpenKruise. Objects of
`+"`v1alpha1`"+` are converted. The fields `+"`imagePreDownload…`"+` have no effect yet. [Statuses](statuses.md#workloads)
lists the conditions. The CRDs are in
`+"[`components/workload-controllers/template/crds`](../../components/workload-controllers/template/crds)"+`.
`, "`api/apps/v1beta1`")
	for _, kind := range p.rootKinds() {
		w.kind(kind)
	}
	w.kind("LifecycleState")
	w.constants("Labels, annotations and variables of pods", "Label", "Annotation", "Env")
	return w.text()
}

var errNoComment = errors.New("no comment")
