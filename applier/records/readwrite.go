package records

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/deletion"
	"github.com/keelson-io/keelson/applier/fingerprint"
	"github.com/keelson-io/keelson/applier/span"
)

// sumOf identifies the record that a Secret begins: the names of further Secrets are hashes of
// their content.
func sumOf(s *corev1.Secret) fingerprint.Sum {
	return fingerprint.New(string(s.Data[keyRecord]), string(s.Data[keyParts])).Sum()
}

func (s *Store) fetch(ctx context.Context, component string) (*Stored, error) {
	if err := s.check(ctx); err != nil {
		return nil, err
	}
	for seen := ""; ; {
		head, err := s.secrets.Get(ctx, recordPrefix+component)
		if err != nil {
			return nil, err
		}
		if head == nil {
			return noRecord(component), nil
		}
		r, err := s.decode(ctx, component, head)
		if !errors.As(err, new(*missingPartError)) || head.ResourceVersion == seen {
			return r, err
		}
		seen = head.ResourceVersion // the head may have been replaced meanwhile, and its parts deleted
	}
}

func noRecord(component string) *Stored {
	return &Stored{Record: Record{Format: recordFormat, Component: component}}
}

func (s *Store) decode(ctx context.Context, component string, head *corev1.Secret) (*Stored, error) {
	packed, parts, err := s.parts.join(ctx, head)
	if err != nil {
		return nil, err
	}
	r := &Stored{Record: Record{Component: component}, ResourceVersion: head.ResourceVersion, sum: sumOf(head), parts: parts}
	if r.size, err = s.packer.unpack(packed, &r.Record); err != nil {
		err = fmt.Errorf("decode Secret %s/%s: %w", head.Namespace, head.Name, err)
		if r.Format <= recordFormat { // a newer Keelson reads a later format
			err = fmt.Errorf("%w (restore the Secret from a backup; if you delete it, Keelson finds by managedFields what it applied, and leaves in place what git dropped meanwhile)", err)
		}
		return nil, &unreadableError{err}
	}
	return r, s.mergeAnnouncement(ctx, r)
}

// Write replaces the record in the cluster. A session's first write takes the component over,
// if it may. A conflict means that another session writes, too.
func (s *Store) Write(ctx context.Context, old *Stored, content Record) (_ *Stored, err error) {
	ctx, is := span.Start(ctx, "record")
	defer func() { is.End(err) }()
	next, err := s.replace(ctx, old, content)
	if err != nil {
		s.memory.forget(content.Component)
		return nil, fmt.Errorf("cluster %s: record of %s: %w", s.cluster, content.Component, err)
	}
	s.memory.remember(next)
	if err := s.parts.sweep(ctx, old, next); err != nil {
		return nil, fmt.Errorf("cluster %s: old parts of the record of %s: %w", s.cluster, content.Component, err)
	}
	return next, nil
}

func (s *Store) replace(ctx context.Context, old *Stored, content Record) (*Stored, error) {
	content.Format, content.Epoch, content.Writer = recordFormat, s.Epoch(old), s.writer.Identity
	if err := s.takeOver(ctx, old); err != nil {
		return nil, err
	}
	if !s.Owns(old) && old.Open() {
		s.memory.setUnfenced(content.Component, true) // before the write, whose answer may be lost
	}
	packed, size, err := s.packer.pack(content)
	if err != nil {
		return nil, err
	}
	head := corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name: recordPrefix + content.Component, Namespace: v1alpha1.Namespace, ResourceVersion: old.ResourceVersion,
			Labels: map[string]string{Label: content.Component},
		},
		Type: "keelson.io/record", Data: map[string][]byte{keyRecord: packed},
	}
	var parts []string
	if len(packed) > secretSize {
		if parts, err = s.parts.write(ctx, old, packed); err != nil {
			return nil, err
		}
		names, err := json.Marshal(parts)
		if err != nil {
			return nil, fmt.Errorf("encode the names of parts: %w", err)
		}
		head.Data = map[string][]byte{keyParts: names}
	}
	version, err := s.secrets.Write(ctx, &head)
	if err != nil {
		return nil, err
	}
	if !s.Owns(old) {
		s.announcer.release(content.Component) // the takeover is no longer needed
	}
	return &Stored{Record: content, ResourceVersion: version, sum: sumOf(&head), parts: parts, size: size}, nil
}

// Remove deletes the record if it is still the version that was read.
func (s *Store) Remove(ctx context.Context, old *Stored) error {
	s.memory.forget(old.Component)
	next := noRecord(old.Component)
	err := s.takeOver(ctx, old)
	if err == nil && old.ResourceVersion != "" {
		if err = deletion.SendRecord(ctx, s.secrets.client, recordPrefix+old.Component, "", old.ResourceVersion); apierrors.IsNotFound(err) {
			err = nil
		}
	}
	if err == nil {
		s.announcer.release(old.Component)
		err = s.parts.sweep(ctx, old, next)
	}
	if err != nil {
		return fmt.Errorf("cluster %s: delete the record of %s: %w", s.cluster, old.Component, err)
	}
	s.memory.remember(next)
	return nil
}
