// Command crdcompare reports how a CRD differs from the CRD that it replaces: which objects it
// would reject, prune, default or merge differently, and what it doesn't show. `make crd-compat`
// runs it.
//
// Intended differences are listed in a file, each with its reason. An unlisted difference fails the
// comparison, and so does a listed one that doesn't exist.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "crdcompare:", err)
		os.Exit(1)
	}
}

// intent is an intended difference.
type intent struct {
	difference
	Why string `json:"why"`
}

func run(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("crdcompare", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // the returned error includes it
	file := flags.String("intended", "", "a file of differences that are intended: a list of {path, what, why}")
	if err := flags.Parse(args); err != nil {
		return fmt.Errorf("usage: %w", err)
	}
	if flags.NArg() != 2 {
		return errors.New("usage: crdcompare [--intended FILE] REFERENCE OURS, both files of one CRD")
	}
	intended, err := readIntents(*file)
	if err != nil {
		return err
	}
	reference, err := readCRD(flags.Arg(0))
	if err != nil {
		return err
	}
	ours, err := readCRD(flags.Arg(1))
	if err != nil {
		return err
	}
	return report(compare(reference, ours), intended, reference.Spec.Names.Plural, out)
}

// report prints the differences. It fails on unintended differences, and on intents of this CRD
// that match no difference.
func report(differences []difference, intended []intent, plural string, out io.Writer) error {
	var wrong int
	for _, d := range differences {
		i := slices.IndexFunc(intended, func(i intent) bool { return i.difference == d })
		if i < 0 {
			wrong++
			fmt.Fprintf(out, "%s: %s\n", d.Path, d.What)
			continue
		}
		fmt.Fprintf(out, "%s: %s (intended: %s)\n", d.Path, d.What, intended[i].Why)
	}
	for _, i := range intended {
		if of(i.Path) == plural && !slices.Contains(differences, i.difference) {
			wrong++
			fmt.Fprintf(out, "%s: %s: it is listed as intended, and isn't so\n", i.Path, i.What)
		}
	}
	if wrong > 0 {
		return fmt.Errorf("%s: %d differences are not as intended", plural, wrong)
	}
	fmt.Fprintf(out, "%s: as the reference, but for %d intended differences\n", plural, len(differences))
	return nil
}

// of returns the plural of the CRD that a path belongs to.
func of(path string) string {
	for i, c := range path {
		if c == '/' || c == '.' {
			return path[:i]
		}
	}
	return path
}

func readIntents(file string) ([]intent, error) {
	if file == "" {
		return nil, nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err //nolint:wrapcheck // it names the file
	}
	var intended []intent
	if err := yaml.UnmarshalStrict(data, &intended); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	for _, i := range intended {
		if i.Path == "" || i.What == "" || i.Why == "" {
			return nil, fmt.Errorf("%s: %s %q needs a path, what is different, and why", file, i.Path, i.What)
		}
	}
	return intended, nil
}

func readCRD(file string) (*apiextensionsv1.CustomResourceDefinition, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err //nolint:wrapcheck // it names the file
	}
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.Unmarshal(data, &crd); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if crd.Kind != "CustomResourceDefinition" || len(crd.Spec.Versions) == 0 {
		return nil, fmt.Errorf("%s: no CustomResourceDefinition with versions", file)
	}
	return &crd, nil
}
