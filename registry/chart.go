package registry

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/Masterminds/semver/v3"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry/archive"
	"github.com/keelson-io/keelson/registry/gitrepo"
	"github.com/keelson-io/keelson/registry/naming"
	"github.com/keelson-io/keelson/registry/objectcache"
	"github.com/keelson-io/keelson/registry/yamlfile"
)

// ChartSourceFile is the file of a component that names the origin of its chart.
const ChartSourceFile = "chart.yaml"

// ChartLimits returns the limits of a component's chart, packed or not.
func ChartLimits() archive.Limits {
	return archive.Limits{Files: maxComponentFiles, Bytes: maxComponentBytes, FileBytes: maxComponentFile}
}

// DecodeChartSource decodes a chart.yaml. The path is for the positions of the problems.
func DecodeChartSource(path string, data []byte) (v1alpha1.ChartSource, yamlfile.Problems) {
	f := decodeChartSource(data)
	var problems yamlfile.Problems
	for _, m := range f.Mistakes {
		problems = append(problems, m.In(path, ""))
	}
	return f.spec, problems
}

// readChart reads template/: the folder of a chart, or a packed one.
func (r *versionReader) readChart(ctx context.Context, v *Version) error {
	v.folder, v.revision = r.folder, r.revision
	top := join(r.folder, "template") + "/"
	var files, packed []gitrepo.Entry
	for _, e := range r.entries {
		if name, inside := strings.CutPrefix(e.Path, top); inside {
			files = append(files, e)
			if path.Ext(name) == ".tgz" && !strings.Contains(name, "/") {
				packed = append(packed, e)
			}
		}
	}
	if len(packed) > 0 {
		return r.readArchive(ctx, v, files, packed)
	}
	for _, e := range files {
		data, ok, err := r.chartFile(ctx, v, e)
		if err != nil {
			return err
		}
		if ok {
			v.Chart = append(v.Chart, File{Name: strings.TrimPrefix(e.Path, top), Data: data})
		}
	}
	if !r.has("template/Chart.yaml") {
		r.missing(top+"Chart.yaml", "template/Chart.yml")
	}
	slices.SortFunc(v.Chart, func(a, b File) int { return strings.Compare(a.Name, b.Name) })
	return nil
}

// chartFile returns the content of one file, and shares it with other versions that hold it. It
// returns false if the file can't be read.
func (r *versionReader) chartFile(ctx context.Context, v *Version, e gitrepo.Entry) (data []byte, ok bool, err error) {
	file := r.sharing.files.held(e.Hash)
	if file == nil {
		data, err := r.tree.Read(ctx, e, maxComponentFile)
		if err != nil {
			return nil, false, r.trouble(ctx, e.Path, err)
		}
		r.cache.Count("chart file")
		file = r.sharing.files.get(e.Hash, func() *fileData { return &fileData{data} })
	}
	v.files = append(v.files, file)
	return file.data, true, nil
}

// readArchive reads a chart that is packed in one .tgz.
func (r *versionReader) readArchive(ctx context.Context, v *Version, files, packed []gitrepo.Entry) error {
	if r.has("template/Chart.yaml") {
		r.hint(packed[0].Path, "template/ holds a chart's folder and a packed chart, and one of them is the component's",
			"remove this file, or all others")
		return nil
	}
	if len(packed) > 1 {
		r.hint(packed[1].Path, "template/ holds more than one packed chart: "+packed[0].Name+" and "+packed[1].Name,
			"keep one; a component that needs two charts is two components, or a chart with two subcharts")
		return nil
	}
	for _, e := range files {
		if e.Path != packed[0].Path && !IsChartNote(strings.TrimPrefix(e.Path, path.Dir(packed[0].Path)+"/")) {
			r.hint(e.Path, "beside "+packed[0].Name+" this file has no effect: the chart's files are those that are packed",
				"remove it, or unpack the chart")
			return nil
		}
	}
	data, ok, err := r.chartFile(ctx, v, packed[0])
	if err != nil || !ok {
		return err
	}
	v.Archive = packed[0].Name
	r.unpack(v, packed[0], data)
	return nil
}

// packedChart is the content of a .tgz.
type packedChart struct {
	digest string
	files  []File
	wrong  string // why it can't be read
	holds  holding
}

// unpackChart unpacks a .tgz, with the limits of a whole component.
func unpackChart(data []byte) *packedChart {
	p := &packedChart{digest: archive.Digest(data)}
	_, files, err := archive.Unpack(data, ChartLimits())
	if err != nil {
		p.wrong = err.Error()
		return p
	}
	for _, f := range files {
		p.files = append(p.files, File(f))
		p.holds.files++
		p.holds.bytes += int64(len(f.Data))
	}
	return p
}

// unpack reads the chart's files from the archive, unless another version holds them.
func (r *versionReader) unpack(v *Version, e gitrepo.Entry, data []byte) {
	p := r.sharing.packed.get(e.Hash, func() *packedChart { return unpackChart(data) })
	r.unpacked = p.holds // counted even if unusable, because unpacking is work
	if p.wrong != "" {
		r.cache.Keep(objectcache.Key{Job: "packed", Hash: e.Hash}, p) // no version keeps it, and another may need it
	}
	switch {
	case v.Source != nil && v.Source.Digest != "" && v.Source.Digest != p.digest:
		r.hint(e.Path, fmt.Sprintf("the file is %s, and chart.yaml pins %s", p.digest, v.Source.Digest),
			"keelson vendor "+r.component+" brings the pinned file back")
		return
	case p.wrong != "":
		r.hint(e.Path, "the packed chart can't be read: "+p.wrong, "pack it with helm package")
		return
	}
	switch {
	case r.files+p.holds.files > maxComponentFiles:
		r.add(r.folder, "the component holds more than %d files, those in %s among them", maxComponentFiles, e.Name)
		return
	case r.bytes+p.holds.bytes > maxComponentBytes:
		r.add(r.folder, "the component is larger than %d MiB, when %s is unpacked", maxComponentBytes>>20, e.Name)
		return
	}
	v.packed, v.Chart = p, p.files
	if !slices.ContainsFunc(v.Chart, func(f File) bool { return f.Name == "Chart.yaml" }) {
		r.hint(e.Path, "there is no Chart.yaml in the packed chart", "pack the chart's folder with helm package")
	}
}

// IsChartNote reports whether a file beside a packed chart is documentation. The name is relative
// to template/.
func IsChartNote(name string) bool {
	if strings.Contains(name, "/") {
		return false
	}
	upper := strings.ToUpper(name)
	switch path.Ext(upper) {
	case ".MD", ".TXT":
		return true
	}
	return name[0] == '.' || upper == "LICENSE" || upper == "NOTICE" || upper == "README"
}

// readSource reads chart.yaml. Only a component with a third-party chart has one.
func (r *versionReader) readSource(ctx context.Context, v *Version) error {
	data, path, err := r.file(ctx, ChartSourceFile)
	if err != nil {
		return err
	}
	if data == nil {
		if r.has("chart.yml") {
			r.missing(path, "chart.yml")
		}
		return nil
	}
	f := decodeChartSource(data)
	r.mistakes(path, f.Mistakes)
	if len(f.Mistakes) == 0 {
		v.Source = &f.spec
	}
	return nil
}

// hint reports a problem with a file, and what to do about it.
func (r *versionReader) hint(path, message, hint string) {
	r.problems = append(r.problems, yamlfile.Problem{At: yamlfile.Position{File: path, Revision: r.revision}, Message: message, Hint: hint})
}

// chartChecker checks chart.yaml.
type chartChecker struct{ checker }

// source checks chart.yaml.
func (c chartChecker) source(s v1alpha1.ChartSource) {
	c.origin(nil, v1alpha1.ChartDependency{URL: s.URL, Name: s.Name, Version: s.Version, Digest: s.Digest})
	if _, err := semver.NewConstraint(s.Constraint); err != nil && s.Constraint != "" {
		c.value([]string{"constraint"}, fmt.Sprintf("constraint %q is no range of versions: %v", s.Constraint, err), "for example ^1.45")
	}
	if wrong := naming.CheckDigest(s.Files); wrong != "" && s.Files != "" {
		c.value([]string{"files"}, wrong, "")
	}
	if s.Digest == "" && s.Files == "" && !c.doc.Wrong("digest") && !c.doc.Wrong("files") {
		c.key(nil, "neither digest nor files is set, so the chart is not identified", "let keelson vendor write this file")
	}
	for i, d := range s.Dependencies {
		c.origin([]string{"dependencies", strconv.Itoa(i)}, d)
	}
}

// origin checks the origin of one chart.
func (c chartChecker) origin(path []string, d v1alpha1.ChartDependency) {
	if wrong := naming.CheckChartURL(d.URL); wrong != "" && d.URL != "" {
		c.value(yamlfile.Below(path, "url"), wrong, "oci://HOST/PATH/CHART, https://HOST/PATH or file:PATH")
	}
	if wrong := naming.CheckChart(d.Name); wrong != "" && d.Name != "" {
		c.value(yamlfile.Below(path, "name"), wrong, "")
	}
	if _, err := semver.NewVersion(d.Version); err != nil && d.Version != "" {
		c.value(yamlfile.Below(path, "version"), fmt.Sprintf("version %q is not X.Y.Z: %v", d.Version, err), "")
	}
	if wrong := naming.CheckDigest(d.Digest); wrong != "" && d.Digest != "" {
		c.value(yamlfile.Below(path, "digest"), wrong, "")
	}
}
