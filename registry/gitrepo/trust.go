package gitrepo

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"

	"github.com/keelson-io/keelson/registry/objectcache"
)

// Trust verifies the signatures of one repository at one moment. A nil Trust means that no keys
// were given.
type Trust struct {
	keys     *trustedKeys
	snapshot *Snapshot
}

// verdict is the result of verifying one object's signature.
type verdict struct {
	signer Signer
	wrong  string // empty: the signature is good
}

// Trust reads the trusted keys at each call, so that a removed key stops counting without a
// restart. The result is nil without keys.
func (r *Repo) Trust(now *Snapshot) (*Trust, error) {
	if len(r.trustedFiles) == 0 {
		return nil, nil //nolint:nilnil // a nil Trust is one
	}
	keys, err := readTrusted(r.trustedFiles)
	if err != nil {
		return nil, err
	}
	return &Trust{keys: keys, snapshot: now}, nil
}

// outside refuses trusted keys inside the repository, where a push could change them.
func outside(l location, files []string) error {
	for _, file := range files {
		found, err := localPath(file)
		if err != nil {
			return err
		}
		if rest, ok := strings.CutPrefix(found.path, l.path+string(filepath.Separator)); ok && l.path != "" {
			return fmt.Errorf("trusted keys must not come from the repository that they are for: move %s out of %s", rest, l.path)
		}
	}
	return nil
}

// Digest identifies the keys; "" without keys.
func (t *Trust) Digest() string {
	if t == nil {
		return ""
	}
	return t.keys.digest
}

// commit returns the signer of a commit.
func (t *Trust) commit(h plumbing.Hash) (Signer, error) {
	v, err := objectcache.Get(t.snapshot.cache, objectcache.Key{Job: "signer", Hash: h.String(), Name: t.keys.digest}, func() (verdict, error) {
		raw, err := t.snapshot.objects.readTyped(plumbing.CommitObject, h, maxCommitBytes)
		if err != nil {
			return verdict{}, err
		}
		return t.keys.judgeCommit(raw), nil
	})
	return v.result(err, "commit "+h.String()[:12])
}

func (v verdict) result(err error, what string) (Signer, error) {
	switch {
	case err != nil:
		return Signer{}, fmt.Errorf("%s can't be verified: %w", what, err)
	case v.wrong != "":
		return Signer{}, fmt.Errorf("%s is not to be trusted: %s", what, v.wrong)
	}
	return v.signer, nil
}

// judgeCommit verifies the signature of a commit.
func (k *trustedKeys) judgeCommit(raw []byte) verdict {
	c, err := parseCommit(raw)
	if err != nil {
		return verdict{wrong: "it is malformed: " + err.Error()}
	}
	payload, signature, err := cutCommit(raw)
	if err != nil {
		return verdict{wrong: err.Error()}
	}
	signer, err := k.verify(payload, signature, c.committed)
	if err != nil {
		return verdict{wrong: err.Error()}
	}
	return verdict{signer: signer}
}

// judgeTag verifies the signature of an annotated tag with the given name. A tag that was signed
// under another name is refused, because it publishes something else.
func (k *trustedKeys) judgeTag(raw []byte, name string) verdict {
	t, err := parseTag(raw)
	if err != nil {
		return verdict{wrong: "it is malformed: " + err.Error()}
	}
	if t.name != name {
		return verdict{wrong: fmt.Sprintf("it was made as tag %q", t.name)}
	}
	payload, signature, err := cutTag(raw)
	if err != nil {
		return verdict{wrong: err.Error()}
	}
	signer, err := k.verify(payload, signature, t.tagged)
	if err != nil {
		return verdict{wrong: err.Error()}
	}
	return verdict{signer: signer}
}

// Tag verifies the signature of a tag: of the tag object, or of the commit of a lightweight tag.
// Without keys, every tag is trusted.
func (t *Trust) Tag(name string) (lightweight bool, err error) {
	if t == nil {
		return false, nil
	}
	raw := t.snapshot.tags[name]
	type judged struct {
		verdict
		lightweight bool
	}
	v, err := objectcache.Get(t.snapshot.cache, objectcache.Key{Job: "signer", Hash: raw.String(), Name: t.keys.digest + " " + name}, func() (judged, error) {
		kind, data, err := t.snapshot.objects.read(raw, maxCommitBytes)
		switch {
		case err != nil:
			return judged{}, err
		case kind == plumbing.CommitObject:
			return judged{t.keys.judgeCommit(data), true}, nil
		case kind != plumbing.TagObject:
			return judged{}, fmt.Errorf("object %s is a %s, not a commit", raw, kind)
		}
		return judged{t.keys.judgeTag(data, name), false}, nil
	})
	what := "tag " + name
	if v.lightweight {
		what = fmt.Sprintf("commit %s of the lightweight tag %s", raw.String()[:12], name)
	}
	_, err = v.result(err, what)
	return v.lightweight, err
}
