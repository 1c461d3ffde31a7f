// Package audit reads the audit log of an API server. With it, a test can check
// which requests a program made and what the program sent.
//
// The log is JSON, one event (audit.k8s.io/v1) per line. The lab's policy writes
// a line when a request is answered. A watch has one line when it begins and
// another line when it ends.
package audit

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The stages that the lab's policy logs.
const (
	ResponseStarted  = "ResponseStarted"  // a watch begins
	ResponseComplete = "ResponseComplete" // the request is answered; a watch ended
	Panic            = "Panic"            // the API server failed to answer
)

// ErrRotated is returned for a log that is shorter than the offset to read from.
// The log was rotated, so the events after the offset are lost to the reader.
var ErrRotated = errors.New("the audit log was rotated or begun anew")

// Event is one line of the log.
type Event struct {
	ID        string // the same for all events of one request
	Stage     string
	Verb      string // get, list, watch, create, update, patch, delete, deletecollection; else the HTTP method
	User      string
	UserAgent string
	Resource  Resource // zero for a path that isn't a resource, such as /openapi/v3
	Code      int      // HTTP status
	URI       string   // path and query
	Received  time.Time
	Time      time.Time // when the stage was reached

	// From the query of the URI.
	DryRun       bool
	FieldManager string
	Force        bool

	// The bodies. Each is nil if the policy doesn't log bodies or the request has none.
	Request  json.RawMessage
	Response json.RawMessage
}

// Resource is the object or collection that a request addresses.
type Resource struct {
	Group   string `json:"apiGroup"`
	Version string `json:"apiVersion"`

	Resource, Subresource, Namespace, Name string
}

// String returns the resource as in "apps/v1 deployments/scale kube-system/dns".
func (r Resource) String() string {
	join := func(a, b string) string { return strings.Trim(a+"/"+b, "/") }
	return strings.TrimSpace(join(r.Group, r.Version) + " " + join(r.Resource, r.Subresource) + " " + join(r.Namespace, r.Name))
}

// Write reports whether the verb of the request changes objects. A dry run counts.
func (e Event) Write() bool {
	return slices.Contains([]string{"create", "update", "patch", "delete", "deletecollection"}, e.Verb)
}

// Accepted reports whether the request is a write that the API server carried out.
func (e Event) Accepted() bool { return e.Write() && !e.DryRun && e.Code < 300 }

// ResourceVersion returns the version of the object in the answer to a write, or 0 without
// one. Versions order the writes as etcd stored them.
func (e Event) ResourceVersion() uint64 {
	var object metav1.PartialObjectMetadata
	if json.Unmarshal(e.Response, &object) != nil {
		return 0
	}
	version, err := strconv.ParseUint(object.ResourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	return version
}

// Watch reports whether the request was a watch.
func (e Event) Watch() bool { return e.Verb == "watch" }

// Read reports whether the request is neither a write nor a watch.
func (e Event) Read() bool { return !e.Write() && !e.Watch() }

// String returns the event as one line.
func (e Event) String() string {
	var notes strings.Builder
	if e.DryRun {
		notes.WriteString(" dry-run")
	}
	if e.FieldManager != "" {
		notes.WriteString(" as " + e.FieldManager)
	}
	if e.Force {
		notes.WriteString(" forced")
	}
	what := e.Resource.String()
	if e.Resource == (Resource{}) {
		what = e.URI
	}
	return fmt.Sprintf("%s %s %s %s %d%s", e.Time.Format("15:04:05.000"), e.User, e.Verb, what, e.Code, notes.String())
}

// patience is the longest wait for the rest of a line. An API server writes a long line
// in several pieces, without a pause between them.
const patience = time.Minute

// End returns the offset in bytes at which the log ends now. Events read from there
// were logged later. End waits up to one minute until an incomplete last line is
// written. Otherwise reading would begin inside that line. The end of a log that doesn't
// exist yet is 0.
func End(path string) (int64, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("open the audit log: %w", err)
	}
	defer func() { _ = f.Close() }() // only read
	for giveUp := time.After(patience); ; {
		end, whole, err := endOf(f)
		if err != nil {
			return 0, fmt.Errorf("read the audit log: %w", err)
		}
		if whole {
			return end, nil
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-giveUp:
			return 0, fmt.Errorf("the last line of %s has no end after %s", path, patience)
		}
	}
}

// endOf returns the length of a log in bytes, and whether its last line is complete.
func endOf(f *os.File) (end int64, whole bool, err error) {
	info, err := f.Stat()
	if err != nil || info.Size() == 0 {
		return 0, err == nil, err //nolint:wrapcheck // the caller says of what
	}
	last := make([]byte, 1)
	if _, err := f.ReadAt(last, info.Size()-1); err != nil {
		return 0, false, err //nolint:wrapcheck // as above
	}
	return info.Size(), last[0] == '\n', nil
}

// Read returns the events after an offset in bytes, in the order of the log, and the
// offset for the next call. Read skips an incomplete last line; the next call
// reads that line. If a line is invalid, Read returns the events before that line, its
// offset as next, and an error.
func Read(path string, since int64) (events []Event, next int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, since, fmt.Errorf("open the audit log: %w", err)
	}
	defer func() { _ = f.Close() }() // only read
	info, err := f.Stat()
	if err != nil {
		return nil, since, fmt.Errorf("look at the audit log: %w", err)
	}
	if info.Size() < since {
		return nil, since, fmt.Errorf("read %s from byte %d of %d: %w", path, since, info.Size(), ErrRotated)
	}
	if _, err := f.Seek(since, io.SeekStart); err != nil {
		return nil, since, fmt.Errorf("read the audit log: %w", err)
	}
	lines := bufio.NewReaderSize(f, 1<<16)
	for next = since; ; {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return events, next, nil
		}
		if err != nil {
			return events, next, fmt.Errorf("read the audit log at byte %d: %w", next, err)
		}
		event, err := parse(line)
		if err != nil {
			return events, next, fmt.Errorf("%s at byte %d: %w", path, next, err)
		}
		events = append(events, event)
		next += int64(len(line))
	}
}

// line holds the fields of an audit.k8s.io/v1 Event that this package uses.
type line struct {
	AuditID                  string                    `json:"auditID"`
	Stage                    string                    `json:"stage"`
	Verb                     string                    `json:"verb"`
	RequestURI               string                    `json:"requestURI"`
	UserAgent                string                    `json:"userAgent"`
	User                     struct{ Username string } `json:"user"`
	ObjectRef                Resource                  `json:"objectRef"`
	ResponseStatus           struct{ Code int }        `json:"responseStatus"`
	RequestObject            json.RawMessage           `json:"requestObject"`
	ResponseObject           json.RawMessage           `json:"responseObject"`
	RequestReceivedTimestamp time.Time                 `json:"requestReceivedTimestamp"`
	StageTimestamp           time.Time                 `json:"stageTimestamp"`
}

func parse(data []byte) (Event, error) {
	var l line
	if err := json.Unmarshal(data, &l); err != nil {
		return Event{}, fmt.Errorf("no audit event: %w", err)
	}
	if l.AuditID == "" || l.Stage == "" || l.Verb == "" {
		return Event{}, errors.New("no audit event: auditID, stage or verb is missing")
	}
	uri, err := url.ParseRequestURI(l.RequestURI)
	if err != nil {
		return Event{}, fmt.Errorf("audit event %s: %w", l.AuditID, err)
	}
	query := uri.Query()
	return Event{
		ID: l.AuditID, Stage: l.Stage, Verb: l.Verb,
		User: l.User.Username, UserAgent: l.UserAgent, Resource: l.ObjectRef, Code: l.ResponseStatus.Code,
		URI: l.RequestURI, Received: l.RequestReceivedTimestamp, Time: l.StageTimestamp,
		DryRun: query.Get("dryRun") == "All", FieldManager: query.Get("fieldManager"), Force: query.Get("force") == "true",
		Request: l.RequestObject, Response: l.ResponseObject,
	}, nil
}
