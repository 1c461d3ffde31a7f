package sim

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/request"
)

const (
	// bodyLimit is the largest request in bytes. Answers of packFrom bytes or more are compressed
	// for clients that accept gzip, as in API servers.
	bodyLimit = 3 << 20
	packFrom  = 128 << 10
)

// answer is one request and its answer.
type answer struct {
	server   *server
	w        *countedWriter
	r        *http.Request
	about    *request.RequestInfo
	protobuf bool // else JSON
	partial  bool // PartialObjectMetadata
}

// negotiate chooses the first supported media type of the Accept header.
func (a *answer) negotiate(k *kind) error {
	accept := a.r.Header.Get("Accept")
	if accept == "" {
		return nil
	}
	for clause := range strings.SplitSeq(accept, ",") {
		media, params, err := mime.ParseMediaType(strings.TrimSpace(clause))
		if err != nil {
			continue
		}
		partial := params["as"] == "PartialObjectMetadata" || params["as"] == "PartialObjectMetadataList"
		if params["as"] != "" && !partial {
			continue // tables
		}
		switch {
		case media == runtime.ContentTypeProtobuf && (partial || typed.Recognizes(k.GroupVersionKind)):
			a.protobuf, a.partial = true, partial
			return nil
		case media == runtime.ContentTypeJSON, media == "*/*", media == "application/*":
			a.partial = partial
			return nil
		}
	}
	e := apierrors.NewGenericServerResponse(http.StatusNotAcceptable, "", schema.GroupResource{}, "", "", 0, false)
	e.ErrStatus.Message = "only the following media types are accepted: application/json, application/vnd.kubernetes.protobuf"
	return e
}

// read returns the body of the request.
func (a *answer) read() ([]byte, error) {
	data, err := io.ReadAll(http.MaxBytesReader(a.w, a.r.Body, bodyLimit))
	if errors.As(err, new(*http.MaxBytesError)) {
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", bodyLimit))
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return data, nil
}

// body returns the object in the body of the request.
func (a *answer) body(k *kind) (map[string]any, error) {
	data, err := a.read()
	if err != nil {
		return nil, err
	}
	return a.decode(data, k.GroupVersionKind)
}

func (a *answer) decode(data []byte, gvk schema.GroupVersionKind) (map[string]any, error) {
	media, _, err := mime.ParseMediaType(a.r.Header.Get("Content-Type"))
	if a.r.Header.Get("Content-Type") == "" {
		media, err = runtime.ContentTypeJSON, nil
	}
	switch {
	case err == nil && media == runtime.ContentTypeJSON:
		content, err := decoded(data)
		if err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		if content["kind"] == nil && content["apiVersion"] == nil {
			content["apiVersion"], content["kind"] = gvk.ToAPIVersionAndKind()
		}
		return content, nil
	case err == nil && media == runtime.ContentTypeProtobuf:
		t, err := typed.New(gvk)
		if err == nil {
			_, _, err = protobuf.NewSerializer(typed, typed).Decode(data, &gvk, t)
		}
		if err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		t.GetObjectKind().SetGroupVersionKind(gvk)
		return runtime.DefaultUnstructuredConverter.ToUnstructured(t) //nolint:wrapcheck // an internal error
	}
	return nil, unsupported(a.r.Header.Get("Content-Type"))
}

func (a *answer) deleteOptions() (*metav1.DeleteOptions, error) {
	o := &metav1.DeleteOptions{}
	data, err := a.read()
	if err != nil {
		return nil, err
	}
	if query := a.r.URL.Query(); len(data) == 0 {
		err = metav1.Convert_url_Values_To_v1_DeleteOptions(&query, o, nil)
	} else if strings.HasPrefix(a.r.Header.Get("Content-Type"), runtime.ContentTypeProtobuf) {
		_, _, err = protobuf.NewSerializer(typed, typed).Decode(data, new(schema.GroupVersionKind{Version: "v1", Kind: "DeleteOptions"}), o)
	} else {
		err = json.Unmarshal(data, o)
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return o, nil
}

// fail answers with an error.
func (a *answer) fail(err error) {
	status := statusOfError(err)
	if status.Details != nil && status.Details.RetryAfterSeconds > 0 {
		a.w.Header().Set("Retry-After", strconv.Itoa(int(status.Details.RetryAfterSeconds)))
	}
	a.respond(int(status.Code), status)
}

// statusOfError converts an error into the Status that an API server returns.
func statusOfError(err error) *metav1.Status {
	if known := apierrors.APIStatus(nil); errors.As(err, &known) {
		s := known.Status()
		if s.Status == "" {
			s.Status = metav1.StatusFailure
		}
		return &s
	}
	return &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Reason: metav1.StatusReasonUnknown, Message: err.Error()}
}

// notServed answers requests for paths that are not served.
func (a *answer) notServed() {
	a.w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	a.w.WriteHeader(http.StatusNotFound)
	_, _ = io.WriteString(a.w, "404 page not found\n") // if it fails, the client is gone
}

func (a *answer) status(s *metav1.Status) error {
	a.respond(http.StatusOK, s)
	return nil
}

// respond sends a Status.
func (a *answer) respond(code int, s *metav1.Status) {
	s.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	if err := a.typed(code, s); err != nil {
		http.Error(a.w, err.Error(), http.StatusInternalServerError)
	}
}

// encoded returns an object with a Go type in the negotiated encoding.
func (a *answer) encoded(o runtime.Object) (data []byte, media string, err error) {
	if !a.protobuf {
		data, err = json.Marshal(o)
		return data, runtime.ContentTypeJSON, err //nolint:wrapcheck // an internal error
	}
	var b strings.Builder
	err = protobuf.NewSerializer(typed, typed).Encode(o, &b)
	return []byte(b.String()), runtime.ContentTypeProtobuf, err
}

// send sends an answer, compressed if an API server would compress it.
func (a *answer) send(code int, media string, data []byte) {
	h := a.w.Header()
	h.Set("Content-Type", media)
	h.Set("Cache-Control", "no-cache, private")
	if len(data) < packFrom || !strings.Contains(a.r.Header.Get("Accept-Encoding"), "gzip") {
		h.Set("Content-Length", strconv.Itoa(len(data)))
		a.w.WriteHeader(code)
		_, _ = a.w.Write(data) // if it fails, the client is gone
		return
	}
	h.Set("Content-Encoding", "gzip")
	h.Add("Vary", "Accept-Encoding")
	a.w.WriteHeader(code)
	z, err := gzip.NewWriterLevel(a.w, 1)
	if err != nil {
		return // impossible: level 1 is valid
	}
	_, _ = z.Write(data) // as above
	_ = z.Close()
}

// object sends an object.
func (a *answer) object(code int, k *kind, o *object) error {
	if !a.protobuf && !a.partial {
		a.send(code, runtime.ContentTypeJSON, o.append(nil))
		return nil
	}
	t, err := a.convert(k, o)
	if err != nil {
		return err
	}
	return a.typed(code, t)
}

// typed sends an object with a Go type in the negotiated encoding.
func (a *answer) typed(code int, o runtime.Object) error {
	data, media, err := a.encoded(o)
	if err == nil {
		a.send(code, media, data)
	}
	return err
}

// convert converts an object to the negotiated form: only metadata, or its Go type.
func (a *answer) convert(k *kind, o *object) (runtime.Object, error) {
	text := o.append(nil)
	if a.partial {
		p := &metav1.PartialObjectMetadata{}
		if err := json.Unmarshal(text, p); err != nil {
			return nil, fmt.Errorf("encode %s %s: %w", k.Kind, o.name, err)
		}
		p.TypeMeta = metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"}
		return p, nil
	}
	t, err := typed.New(k.GroupVersionKind)
	if err == nil {
		err = json.Unmarshal(text, t)
	}
	if err != nil {
		return nil, fmt.Errorf("encode %s %s: %w", k.Kind, o.name, err)
	}
	t.GetObjectKind().SetGroupVersionKind(k.GroupVersionKind)
	return t, nil
}

func uidOf(o *object) types.UID { return types.UID(o.uidText()) }

// surface answers requests that are not about objects.
func (a *answer) surface() {
	s := a.server.surface.Load()
	p := strings.Trim(a.r.URL.Path, "/")
	switch {
	case slices.Contains([]string{"healthz", "livez", "readyz"}, p):
		a.send(http.StatusOK, "text/plain; charset=utf-8", []byte("ok"))
	case p == "version":
		a.send(http.StatusOK, runtime.ContentTypeJSON, s.version)
	case p == "openapi/v3":
		a.index(s)
	case strings.HasPrefix(p, "openapi/v3/"):
		doc, ok := s.documents[strings.TrimPrefix(p, "openapi/v3/")]
		if !ok {
			a.notServed()
			return
		}
		a.send(http.StatusOK, runtime.ContentTypeJSON, doc.data)
	case p == "api" || p == "apis" || strings.HasPrefix(p, "api/") || strings.HasPrefix(p, "apis/"):
		a.discovery(s, p)
	default:
		a.notServed()
	}
}

// index lists the OpenAPI documents, with paths that contain their hashes.
func (a *answer) index(s *surface) {
	found := map[string]map[string]string{}
	for p, d := range s.documents {
		found[p] = map[string]string{"serverRelativeURL": "/openapi/v3/" + p + "?hash=" + d.hash}
	}
	a.plain(http.StatusOK, runtime.ContentTypeJSON, map[string]any{"paths": found})
}
