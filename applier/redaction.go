package applier

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/yamlfile"
	"github.com/keelson-io/keelson/renderer"
	"github.com/keelson-io/keelson/renderer/redact"
)

// MalformedSecretError reports that the data of a Secret has the wrong type. Nothing is sent: an
// API server would quote the value in a less helpful error.
type MalformedSecretError struct {
	ID   differ.ID
	At   yamlfile.Position
	Path string
	Want string // the expected type
}

func (e *MalformedSecretError) Error() string {
	return fmt.Sprintf("%s: %s: %s has to be %s", e.At, e.ID, e.Path, e.Want)
}

// secretRegister registers the secrets of a cluster's components with the redactor.
type secretRegister struct {
	redactor *redact.Redactor // nil: the data is not redacted
	prefix   string           // of this cluster's names in the redactor
}

func newSecretRegister(redactor *redact.Redactor, cluster string) secretRegister {
	return secretRegister{redactor: redactor, prefix: cluster + "/" + rand.Text() + "/"}
}

// close removes the cluster's data. Nothing about the cluster may be printed afterwards.
func (r secretRegister) close() { r.redactor.Forget(r.prefix) }

// addTarget registers the secrets of a target with the redactor, before any step that could quote
// them.
func (r secretRegister) addTarget(w Desired) error {
	r.redactor.Set(r.prefix+w.Component+" wanted", w.Target.Hash, func() []redact.Value { return w.Target.Hidden() })
	for _, o := range slices.Concat(w.Target.Objects, w.Target.Hooks) {
		if err := checkSecret(o); err != nil {
			return err
		}
	}
	return nil
}

// addLive registers the same Secrets as they are in the cluster.
func (r secretRegister) addLive(w Desired, states []differ.State) {
	generation := []string{w.Target.Hash}
	var live []map[string]any
	for i := range states {
		if s := &states[i]; s.Live != nil && s.ID.Group == "" && s.ID.Kind == "Secret" {
			live = append(live, s.Live)
			generation = append(generation, s.ID.String(), resourceVersionOf(s.Live))
		}
	}
	if len(live) > 0 {
		r.redactor.Set(r.prefix+w.Component+" found", strings.Join(generation, " "), func() []redact.Value { return w.Target.Hidden(live...) })
	}
}

// checkSecret refuses data that no API server accepts.
func checkSecret(o *renderer.Object) error {
	id, _ := differ.Identify(o.Content)
	if id.Group != "" || id.Kind != "Secret" {
		return nil
	}
	for _, field := range []string{"data", "stringData"} {
		wrong := &MalformedSecretError{ID: id, At: o.Source, Path: "." + field, Want: "a map"}
		data, isMap := o.Content[field].(map[string]any)
		if o.Content[field] != nil && !isMap {
			return wrong
		}
		for _, key := range slices.Sorted(maps.Keys(data)) {
			wrong.Path = registry.FormatPath([]string{field, key})
			text, isText := data[key].(string)
			switch {
			case data[key] == nil:
			case !isText:
				wrong.Want = "a text: quote it in the template"
				return wrong
			case field == "data" && !isBase64(text):
				wrong.Want = "in base64: use stringData, or b64enc in the template"
				return wrong
			}
		}
	}
	return nil
}

func isBase64(text string) bool {
	_, err := base64.StdEncoding.DecodeString(text)
	return err == nil
}
