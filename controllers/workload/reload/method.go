// Package reload tells containers of running pods that their configuration has changed, and finds out
// whether they have read it.
//
// Configuration is in annotations of the pod, which a volume of the downward API shows to containers. An
// update in place changes the annotations. The kubelet writes the files as soon as it sees the changed
// pod. Only then can the container read them, and no field of the pod tells when that was. So the
// container's answer has to name the version of the files that it has read.
package reload

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/keelson-io/keelson/api/apps/v1beta1"
)

const (
	defaultPath    = "/reload"
	defaultTimeout = time.Minute
	maxTimeout     = time.Hour
	// maxPath bounds the path of a request.
	maxPath = 1024
)

// Validate returns the errors of the annotations of a pod template that are about reloads.
func Validate(template *field.Path, t *corev1.PodTemplateSpec) field.ErrorList {
	annotations := template.Child("metadata", "annotations")
	if _, has := t.Annotations[v1beta1.AnnotationReloadState]; has {
		return field.ErrorList{field.Forbidden(annotations.Key(v1beta1.AnnotationReloadState), "the controller writes it to pods: remove it from the template")}
	}
	if version, has := t.Annotations[v1beta1.AnnotationConfigurationVersion]; has && !isPlain(version) {
		return field.ErrorList{field.Invalid(annotations.Key(v1beta1.AnnotationConfigurationVersion), version, fmt.Sprintf("a version has 1 to %d letters, digits, or characters of ._-", maxVersion))}
	}
	text, has := t.Annotations[v1beta1.AnnotationReload]
	if !has {
		return nil
	}
	path := annotations.Key(v1beta1.AnnotationReload)
	m, err := parse(text)
	switch {
	case err != nil:
		return field.ErrorList{field.Invalid(path, text, err.Error())}
	case t.Spec.HostNetwork:
		return field.ErrorList{field.Forbidden(path, "a pod with hostNetwork has the address of its node, so the request could reach another program")}
	case !slices.ContainsFunc(t.Spec.Containers, func(c corev1.Container) bool { return declares(c, m.HTTP.Port) }) &&
		!slices.ContainsFunc(t.Spec.InitContainers, func(c corev1.Container) bool { return isSidecar(c) && declares(c, m.HTTP.Port) }):
		return field.ErrorList{field.Invalid(path, text, fmt.Sprintf("no container declares TCP port %d in its ports", m.HTTP.Port))}
	}
	return nil
}

// isPlain reports whether a text can be a version: one that a header holds as it is, and that a message can
// show.
func isPlain(version string) bool {
	return version != "" && len(version) <= maxVersion && !strings.ContainsFunc(version, func(r rune) bool {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
		return !letter && (r < '0' || r > '9') && !strings.ContainsRune("._-", r)
	})
}

// declares reports whether a container declares a TCP port.
func declares(c corev1.Container, port int32) bool {
	return slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool {
		return p.ContainerPort == port && (p.Protocol == corev1.ProtocolTCP || p.Protocol == "")
	})
}

// isSidecar reports whether an init container runs beside the containers of the pod.
func isSidecar(c corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// parse parses a reload method, with its defaults. A field that is not known is an error: it would be a
// wish that is not followed.
func parse(text string) (*v1beta1.ReloadMethod, error) {
	var m v1beta1.ReloadMethod
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.DisallowUnknownFields()
	if err := d.Decode(&m); err != nil {
		return nil, fmt.Errorf(`it is no reload method in JSON, such as {"http": {"port": 8080, "path": "/reload"}}: %w`, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("there is text after the JSON object")
	}
	if m.HTTP == nil {
		return nil, errors.New("http is missing: remove the annotation if the container watches its files")
	}
	if m.HTTP.Port < 1 || m.HTTP.Port > 65535 {
		return nil, fmt.Errorf("http.port is %d, and a port is 1 to 65535", m.HTTP.Port)
	}
	if m.HTTP.Path == "" {
		m.HTTP.Path = defaultPath
	}
	if u, err := url.Parse(m.HTTP.Path); err != nil || !strings.HasPrefix(m.HTTP.Path, "/") || strings.HasPrefix(m.HTTP.Path, "//") || u.Fragment != "" || len(m.HTTP.Path) > maxPath {
		return nil, fmt.Errorf("http.path is no path of a URL: it begins with one /, and has at most %d characters", maxPath)
	}
	if m.TimeoutSeconds == nil {
		m.TimeoutSeconds = new(int32(defaultTimeout / time.Second))
	}
	if t := *m.TimeoutSeconds; t < 1 || t > int32(maxTimeout/time.Second) {
		return nil, fmt.Errorf("timeoutSeconds is %d, and can be 1 to %d", t, maxTimeout/time.Second)
	}
	return &m, nil
}
